"""What every page is given: the picture, and what this dashboard may do."""

from __future__ import annotations

from dataclasses import dataclass, field

from ckptcore.dashboard.jobs import Jobs
from ckptcore.dashboard.refreshing import Refresher


@dataclass(frozen=True, slots=True)
class Context:
    """``allows_actions`` where buttons may change something; ``asks_who`` where visitors sign in."""

    refresher: Refresher
    allows_actions: bool = False
    asks_who: bool = False
    jobs: Jobs = field(default_factory=Jobs)
