"""What a pipeline's parts are called, and what makes one version the same version wherever it is seen.

Trainer, watcher and reconcile may all meet one version, in any order and number; the names here are how they agree
without speaking. Pure text: what is done under a name is the flows' and the server's business.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable

from ckptcore.rules.cron import cron_mistake
from ckptcore.rules.layout import COMPONENTS, NAMED_COMPONENTS
from ckptcore.rules.retention import parse_age

MERGE = "merge-and-publish"
RECONCILE = "reconcile"
POST_TRAINING = "post-training"
PRUNE = "prune"
AUDIT = "audit"
GATES = "pass-gates"
PROMOTE = "promote"
ROLLBACK = "rollback"
PIN = "pin"
"""What the flows are called on a server; a deployment is ``FLOW/NAME``."""

REFUSED = "Refused"
"""The name of the state of a run that was refused for good."""

MERGE_LIMITS = "merge:"
"""How the names of all those limits begin."""

_BY = "ckpt-by:"
_STEP = "ckpt-step:"
_CRON_FIELD = re.compile(r"[0-9A-Za-z*/,\-#L?]+")


def version_key(name: str, directory: str, unique_id: int, fingerprint: str) -> str:
    """Names the work of publishing one save of one version under ``name``: the version's place (run, step and component
    are in it), its id and the digest of its files.

    A save that overwrites it in place has another digest, and so another key.
    """
    return _digest(name, directory, unique_id, fingerprint)


def version_tag(key: str) -> str:
    """The tag of every flow run that does the work of the key."""
    return f"ckpt-version:{key}"


def version_parameters(directory: object, unique_id: object) -> dict[str, object]:
    """The parameters that narrow a run of the publishing flow to one version. Each is one of its own: the parameters of
    a run replace those of its deployment whole, and are no part of them."""
    return {"directory": directory, "unique_id": unique_id}


def run_tags(name: str, step: int | None) -> tuple[str, ...]:
    """The tags by which people find the runs of a name and of a training step in a list of runs."""
    return (f"ckpt-name:{name}", *(() if step is None else (f"{_STEP}{step}",)))


def step_of(tags: Iterable[str]) -> int | None:
    """The training step that the tags of a run name, None where they name none."""
    steps = (tag.removeprefix(_STEP) for tag in tags if tag.startswith(_STEP))
    return next((int(step) for step in steps if step.isascii() and step.isdigit()), None)


def merge_limit(name: str, directory: str, unique_id: int) -> str:
    """The global concurrency limit that lets one flow at a time merge a version, wherever in a cluster it runs.

    It names the place, not the save: what is overwritten while it is merged must not be merged twice at once.
    """
    return f"{MERGE_LIMITS}{_digest(name, directory, unique_id)}"


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, ensure_ascii=True).encode()).hexdigest()[:24]


def pipeline_tag(name: str) -> str:
    """The tag of everything that a deployed pipeline owns on a server."""
    return f"ckpt-pipeline:{name}"


def by_tag(person: str) -> str:
    """The tag of a run that somebody asked for, so that what it does is recorded as theirs."""
    return f"{_BY}{person}"


def person_of(tags: Iterable[str]) -> str:
    """Who asked for the run with these tags, "" where nobody did."""
    return next((tag.removeprefix(_BY) for tag in sorted(tags) if tag.startswith(_BY)), "")


def glob_of(path: str) -> str:
    """A pattern of Prefect's resource matching that stands for ``path`` alone."""
    return re.sub(r"([\[*?])", r"[\1]", path)


def version_patterns(root: str, component: str | None) -> list[str]:
    """Patterns of the resources of the versions of a source that a pipeline takes; ``root`` is its path, links
    resolved.

    For the source of ``component``, or, where none is named, of all that ``rules.versions.choose_component`` may choose
    unasked. A star goes over slashes, so that each pattern ends as a version's directory does, and its id follows.
    """
    base, own = f"ckpt.version.{glob_of(root)}", root.rpartition("/")[2]
    names = [component] if component else [name for name in COMPONENTS if name not in NAMED_COMPONENTS]
    patterns = [f"{base}/{place}{name}/[0-9]*" for name in names for place in ("", "checkpoint-*[0-9]/")]
    if component is None:
        patterns.append(f"{base}/checkpoint-*[0-9]/[0-9]*")
    if component in (None, own):
        patterns.append(f"{base}/[0-9]*")
    return patterns


def server_name_mistake(text: str) -> str | None:
    """Why the server, or the address of a thing on it, cannot hold a name, None where it can (Prefect 3.9.1)."""
    forbidden = sorted({*text} & {*"/%&<>?#"})
    if forbidden:
        return f"contains {' '.join(forbidden)}, which no name on Prefect's server may; expected none of / % & < > ? #"
    if text in (".", "..") or not text.isprintable() or text != text.strip():
        return "is no name that an address can hold; expected printable characters, and no space at either end"
    return None


def parse_interval(text: str) -> float | None:
    """Seconds of ``5m`` or ``1h``; None where ``text`` is a cron line of five fields. Raises ValueError for neither."""
    fields = text.split()
    if len(fields) == 5 and all(_CRON_FIELD.fullmatch(field) for field in fields):
        if mistake := cron_mistake(text):
            raise ValueError(f"{text!r} is no cron line: {mistake}")
        return None
    try:
        return parse_age(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is neither a time such as 5m or 1h nor a cron line of five fields") from error
