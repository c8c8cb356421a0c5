"""What verification found of a version: each finding with what, where, expected and found, and the map of its ranks."""

from __future__ import annotations

from collections.abc import Sequence

from ckptcore.dashboard.linking import Query
from ckptcore.dashboard.markup import Markup, name_of, shown, tag
from ckptcore.dashboard.results import VersionRead, issues_of
from ckptcore.dashboard.words import size
from ckptcore.rules.issues import Issue
from ckptcore.rules.layout import parse_rank_file_name
from ckptcore.rules.pictures import rank_map

_TENSOR = "tensor "


def findings(read: VersionRead, query: Query) -> Markup:
    """The issues, then the notes; words where there are none."""
    issues, notes = issues_of(read.head["issues"]), issues_of(read.head["notes"])
    counted = read.head["issue_count"]
    if not counted:
        verdict = tag("p", "Nothing is wrong: every file, piece, shape and dtype is as the metadata says.")
        drawn = [verdict]
    else:
        drawn = [_listed(issues, counted, query)]
    if notes:
        drawn += [tag("h3", "Notes"), _listed(notes, read.head["note_count"], query)]
    title = tag("h2", "Findings", tag("span", f"{counted:,}", class_="tag" if counted else "tag plain"))
    return tag("section", title, *drawn, class_="card findings", id="findings")


def _listed(issues: Sequence[Issue], counted: int, query: Query) -> Markup:
    rows = [
        tag(
            "tr",
            tag("td", _place(issue, query), class_="place"),
            tag("td", shown(issue.what)),
            tag("td", shown(issue.expected), class_="mono", data_label="expected"),
            tag("td", shown(issue.found), class_="mono", data_label="found"),
        )
        for issue in issues
    ]
    more = counted - len(rows)
    if more > 0:
        rows.append(tag("tr", tag("td", f"and {more:,} more", colspan=4, class_="muted")))
    heads = tag("tr", *(tag("th", text) for text in ("where", "what", "expected", "found")))
    return tag("div", tag("table", tag("thead", heads), tag("tbody", *rows), class_="grid told"), class_="scroll tall")


def _place(issue: Issue, query: Query) -> Markup:
    """Where it is, as a way to the tensor where it is one."""
    start = issue.where.rfind(_TENSOR)
    quoted = issue.where[start + len(_TENSOR) :] if start >= 0 else ""
    # The finding quotes the name as Python does; what has escapes in it is shown and leads nowhere.
    if len(quoted) > 2 and quoted[0] == quoted[-1] and quoted[0] in "'\"" and "\\" not in quoted:
        return tag("a", name_of(issue.where), href=f"{query.address(tensor=quoted[1:-1])}#sharding", class_="go")
    return name_of(issue.where)


def files(read: VersionRead) -> Markup:
    """The map of all rank files, and their table."""
    cells = read.cells
    title = tag("h2", "Rank files")
    if not cells:
        nothing = "The metadata is missing or cannot be read, so that nobody knows which rank files there should be."
        return tag("section", title, tag("p", nothing, class_="muted"), class_="card", id="files")
    drawn = Markup(rank_map("each field a rank, as high as its file is large", cells, hints=True))
    rows = [
        tag(
            "tr",
            tag("td", "" if (parsed := parse_rank_file_name(name)) is None else parsed.rank, class_="number"),
            tag("td", name_of(name), class_="mono"),
            tag("td", tag("span", state, class_=f"chip dot file-{state}")),
            tag("td", "" if size_bytes is None else f"{size_bytes:,}", class_="number"),
            tag("td", "" if size_bytes is None else size(size_bytes), class_="number muted"),
        )
        for name, state, size_bytes in read.head["files"]
    ]
    heads = tag("tr", *(tag("th", text) for text in ("rank", "file", "state", "bytes", "")))
    table = tag("table", tag("thead", heads), tag("tbody", *rows), class_="grid")
    listed = tag("details", tag("summary", f"All {len(rows):,} files"), tag("div", table, class_="scroll tall"))
    picture = tag("div", drawn, class_="scroll rank-map")
    return tag("section", title, picture, listed, class_="card", id="files")
