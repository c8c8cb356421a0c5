"""The values of a release, added up when somebody asks: NaN, infinities, the largest, and norms over releases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ckptcore.dashboard.cells import count_of, key_link, number, real_of
from ckptcore.dashboard.job_line import job_line
from ckptcore.dashboard.jobs import Job
from ckptcore.dashboard.linking import Query
from ckptcore.dashboard.markup import Markup, joined, name_of, tag
from ckptcore.dashboard.norm_line import Point, norm_line
from ckptcore.dashboard.results import HealthRead
from ckptcore.dashboard.table_panel import Kind, Shown
from ckptcore.dashboard.words import size


def values_head(job: Job[HealthRead] | Job[Any] | None, size_bytes: int, open_count: int, before: str) -> Markup:
    """What was found, or the button that reads. ``before`` says what reading earlier releases too would read."""
    title = tag("h2", "Values")
    read_before = tag("button", before, data_do="before", class_="plain") if before else None
    stop = tag("button", f"Stop {open_count:,} readings", data_do="stop", class_="plain") if open_count > 1 else None
    if job is None:
        hint = "NaN, infinities, the largest value and the norm of each tensor are known once every value was read."
        button = tag("button", f"Read {size(size_bytes)}", data_do="health", class_="plain")
        return joined([title, tag("p", hint, class_="muted"), tag("p", button, read_before, class_="buttons")])
    if not job.is_done:
        return joined([title, job_line(job, "the values", can_stop=True)])
    read: HealthRead = job.result
    count = len(read.tensors)
    sick = read.sick_count
    verdict = (
        tag("p", f"{sick:,} of {count:,} tensors hold NaN or infinities.", class_="sentence level-wrong")
        if sick
        else tag("p", f"All values of {count:,} tensors are finite.")
    )
    norm = "too large for a double" if read.norm is None else number(read.norm)
    others = f"; {read.others:,} tensors of other dtypes were not read" if read.others else ""
    told = tag("p", f"Norm of all finite values: {norm}{others}.", class_="muted")
    buttons = tag("p", read_before, stop, class_="buttons") if read_before or stop else None
    return joined([title, verdict, told, buttons])


def norms(key: str, points: Sequence[Point]) -> Markup:
    """The norm over releases, of the chosen tensor or of all."""
    of = tag("span", "of ", name_of(key, class_="mono")) if key else "of all tensors together"
    return tag("div", tag("h3", "Norm from release to release, ", of), norm_line(points), class_="part")


def values_kind(query: Query) -> Kind:
    return Kind(
        "h",
        (
            Shown("key", key_link(query, "norm")),
            Shown("nan", count_of("nan", hides_zero=True)),
            Shown("inf", count_of("inf", hides_zero=True)),
            Shown("absmax", real_of("absmax")),
            Shown("norm", real_of("norm")),
        ),
        "Find a tensor that was read",
        "It holds no tensor of floating-point numbers.",
    )
