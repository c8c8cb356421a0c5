"""What a step shows in Prefect's interface: keys made from any name; tables, pages and pictures of bounded size.

An artifact belongs to a task run. Where there is none, as when a task's function is called by itself, nothing is made.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

from prefect.artifacts import create_image_artifact, create_markdown_artifact, create_table_artifact
from prefect.context import FlowRunContext, TaskRunContext
from prefect.logging import get_run_logger

from ckptcore.errors import CheckpointError
from ckptcore.rules.issues import Issue

MOST_ROWS = 500
"""Artifacts lie in the server's database; the whole list is in the error, the report or the manifest."""
_MOST_SLUG_CHARACTERS = 60

Row = dict[str, str]


def is_in_task_run() -> bool:
    """Whether there is a task run that an artifact could belong to."""
    return TaskRunContext.get() is not None


def is_in_flow_run() -> bool:
    """Whether there is a flow run, with or without a task's, that an artifact could belong to."""
    return FlowRunContext.get() is not None


def artifact_key(what: str, name: str) -> str:
    """A key of lowercase letters, digits and dashes; two names that differ only in other characters get two keys."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_MOST_SLUG_CHARACTERS].rstrip("-")
    if slug != name:
        digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
        slug = f"{slug}-{digest}" if slug else digest
    return f"{what}-{slug}"


def issue_rows(kind: str, issues: Iterable[Issue]) -> Iterator[Row]:
    """A row for each finding."""
    for issue in issues:
        yield {"kind": kind, "where": issue.where, "finding": str(issue)}


def show_table(key: str, rows: Iterable[Row], description: str) -> None:
    """A table artifact of the first rows, with a last one that counts the rest."""
    if not is_in_task_run():
        return
    remaining = iter(rows)
    table = list(islice(remaining, MOST_ROWS))
    left_out = sum(1 for _ in remaining)
    if left_out:
        table.append(dict.fromkeys(table[0], "") | {"kind": f"… and {left_out:,} more"})
    create_table_artifact(table, key=key, description=description)


@contextmanager
def refusals_shown(key: str) -> Iterator[None]:
    """Shows the issues of a refusal that leaves the block as a table, where it has any."""
    try:
        yield
    except CheckpointError as refusal:
        if refusal.issues:
            show_table(key, issue_rows("issue", refusal.issues), refusal.message)
        raise


def show_page(key: str, lines: Sequence[str], description: str) -> None:
    """A markdown artifact."""
    if is_in_task_run():
        create_markdown_artifact("\n".join(lines), key=key, description=description)


def show_picture(key: str, svg: str, description: str) -> None:
    """An image artifact that holds the picture itself, so that it is seen wherever Prefect's interface is.

    A picture that cannot be shown is no reason for a run to fail.
    """
    if not (is_in_task_run() or is_in_flow_run()):
        return
    # Both of Prefect's interfaces put the address into an <img>, where a picture can neither run nor load anything.
    address = f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
    try:
        create_image_artifact(address, key=key, description=description)
    except Exception:  # noqa: BLE001 - whatever the client raises, the checkpoint is what matters
        get_run_logger().warning("cannot show %s in Prefect", key, exc_info=True)


def cell(text: object) -> str:
    """The text as code in a cell of a markdown table, whatever is in it."""
    escaped = re.sub(r"[\x00-\x1f`]", "�", str(text)).replace("|", "\\|")
    return f"`{escaped}`"
