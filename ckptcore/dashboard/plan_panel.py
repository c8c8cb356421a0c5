"""What a merge of the version would do, planned when somebody asks."""

from __future__ import annotations

from typing import Any

from ckptcore.dashboard.cells import digest
from ckptcore.dashboard.job_line import job_line
from ckptcore.dashboard.jobs import Job
from ckptcore.dashboard.markup import Markup, name_of, shown, tag
from ckptcore.dashboard.results import PlanRead, issues_of
from ckptcore.dashboard.words import size

_MOST_SHARDS = 400


def plan_panel(job: Job[PlanRead] | Job[Any] | None, config: str, published_plan: str) -> Markup:
    """The panel; ``config`` is what it is planned by, ``published_plan`` the digest of its release's plan, or ""."""
    by = "as the pipeline's configuration says" if config else "as ckpt merge does without options"
    title = tag("h2", "Plan")
    if job is None:
        button = tag("button", "Show the plan", data_do="plan", class_="plain")
        return tag(
            "section", title, tag("p", f"What a merge would write, {by}.", class_="muted"), button, class_="card"
        )
    if not job.is_done:
        return tag("section", title, job_line(job, "the headers, to plan", can_stop=True), class_="card")
    read: PlanRead = job.result
    head = read.head
    same = ""
    if published_plan:
        is_same = published_plan == head["digest"]
        same = "the release was made by this very plan" if is_same else "the release was made by another plan"
    facts = [
        ("digest", tag("span", digest(head["digest"]), f"  {same}" if same else None)),
        ("reads", f"{size(head['bytes_in'])} from {head['inputs']:,} rank files, {head['copies']:,} copies"),
        ("writes", f"{size(head['bytes_out'])} in {len(read.shards):,} shards, {head['tensors']:,} tensors"),
        ("memory", f"{size(head['peak_memory_bytes'])} or less"),
    ]
    listed = tag("dl", *(tag("div", tag("dt", word), tag("dd", what)) for word, what in facts), class_="facts")
    rows = [
        tag(
            "tr",
            tag("td", name_of(name), class_="mono"),
            tag("td", size(size_bytes), class_="number", title=f"{size_bytes:,} bytes"),
            tag("td", f"{tensors:,}", class_="number"),
            tag("td", f"{copies:,}", class_="number"),
        )
        for name, size_bytes, tensors, copies in read.shards[:_MOST_SHARDS]
    ]
    more = len(read.shards) - len(rows)
    if more > 0:
        rows.append(tag("tr", tag("td", f"and {more:,} more", colspan=4, class_="muted")))
    columns = (("shard", None), ("size", "number"), ("tensors", "number"), ("copies", "number"))
    heads = tag("tr", *(tag("th", text, class_=class_) for text, class_ in columns))
    shards = tag("table", tag("thead", heads), tag("tbody", *rows), class_="grid")
    notes = [tag("li", shown(str(note))) for note in issues_of(head["notes"])]
    return tag(
        "section",
        title,
        tag("p", f"What a merge would write, {by}.", class_="muted"),
        listed,
        tag("div", shards, class_="scroll tall"),
        tag("ul", *notes, class_="notes") if notes else None,
        class_="card",
    )
