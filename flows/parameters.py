"""What a pipeline's file says, as the parameters of the flow that publishes one of its sources."""

from __future__ import annotations

from typing import Any

from ckptcore.pipeline import Pipeline, SourceSettings
from ckptcore.rules.retention import parse_age

PATIENCE_SECONDS = 120.0
"""An announcement says that one rank is done; the others are rarely later than this. Reconcile has more patience."""


def merge_parameters(pipeline: Pipeline, source: SourceSettings) -> dict[str, Any]:
    """The parameters of ``merge_and_publish`` for the newest version of the source, as JSON has them."""
    checks = pipeline.checks
    return {
        "source": source.path,
        "registry": pipeline.registry,
        "name": pipeline.name_of(source),
        "component": source.component,
        "prefixes": list(source.prefixes),
        "keep_prefix": source.keep_prefix,
        "include": list(source.include),
        "exclude": list(source.exclude),
        "max_shard_size": source.max_shard_size,
        "alias": pipeline.alias_of(source),
        "attach": list(source.attach),
        "expect": source.expectations,
        "check": "gpu" if checks.gpu else None,
        "smoke": checks.smoke,
        "smoke_timeout_seconds": parse_age(checks.smoke_timeout),
        "sign_key": checks.sign_key,
        "deep": checks.deep,
        "only_forward": True,
    }
