"""What a release is and where it came from, its files and digests, and what was done to it."""

from __future__ import annotations

from collections.abc import Sequence

from ckptcore.clock import seconds_of
from ckptcore.dashboard.frame import version_address
from ckptcore.dashboard.markup import Markup, joined, name_of, shown, tag
from ckptcore.dashboard.results import ReleaseRead
from ckptcore.dashboard.spans_picture import spans_picture
from ckptcore.dashboard.words import ago, moment, size, version
from ckptcore.rules.alias_spans import Span, alias_spans
from ckptcore.rules.release import Act
from ckptcore.rules.sizes import format_duration

_MOST_FILES = 500
_MOST_ACTS = 100


def made_from(read: ReleaseRead, key: str) -> Markup:
    """Its provenance, as the manifest says."""
    head = read.head
    source = head["source"]
    link = tag(
        "a",
        version(source["step"], source["unique_id"]),
        href=version_address(key, source["step"], source["unique_id"]),
        class_="more",
    )
    software = ", ".join(f"{shown(name)} {shown(found)}" for name, found in sorted(head["software"].items()))
    component = None if source["component"] is None else tag("span", shown(source["component"]), class_="muted")
    facts = [
        ("version", tag("span", link, " ", component)),
        ("source", tag("code", shown(source["path"]))),
        ("written by", f"Paddle {shown(source['paddle_format'])} or later" if source["paddle_format"] else "Paddle"),
        ("made", f"{moment(seconds_of(head['created_at']))} UTC by {software}"),
        ("fingerprint", _digest(source["fingerprint"])),
        ("plan", _digest(head["plan_digest"])),
        ("identity", _digest(head["identity"])),
        ("manifest", _digest(head["manifest"][1])),
        ("signature", "model.sig lies beside the manifest" if head["is_signed"] else "none"),
    ]
    listed = tag("dl", *(tag("div", tag("dt", word), tag("dd", what)) for word, what in facts), class_="facts long")
    return tag("section", tag("h2", "Made from"), listed, class_="card")


def _digest(sha256: str) -> Markup:
    return tag("code", sha256 or "none", class_="digest", title=sha256 or None)


def files(read: ReleaseRead) -> Markup:
    """Every file with its size and SHA-256."""
    found = read.head["files"]
    rows = [
        tag(
            "tr",
            tag("td", name_of(name), class_="mono nowrap"),
            tag("td", size(size_bytes), class_="number", title=f"{size_bytes:,} bytes"),
            tag("td", _digest(sha256), class_="digests"),
        )
        for name, size_bytes, sha256 in found[:_MOST_FILES]
    ]
    more = len(found) - len(rows)
    if more > 0:
        rows.append(tag("tr", tag("td", f"and {more:,} more", colspan=3, class_="muted")))
    total = tag("span", f"{len(found):,}, {size(sum(each[1] for each in found))}", class_="muted small")
    heads = tag("tr", tag("th", "file"), tag("th", "size", class_="number"), tag("th", "SHA-256"))
    table = tag("table", tag("thead", heads), tag("tbody", *rows), class_="grid")
    return tag("section", tag("h2", "Files", total), tag("div", table, class_="scroll tall"), class_="card")


def aliases_over_time(acts: Sequence[Act], release: str, now: float) -> Markup:
    """When which alias named it, drawn and told."""
    spans = alias_spans(acts, seconds_of)
    ours = sorted((span for span in spans if span.release == release), key=lambda span: span.since, reverse=True)
    rows = [tag("div", tag("dt", name_of(span.alias)), tag("dd", _span(span, now))) for span in ours[:_MOST_ACTS]]
    title = tag("h2", "Aliases over time")
    if not rows:
        told = "No alias ever named it."
        return tag("section", title, tag("p", told, class_="muted"), spans_picture(spans, release, now), class_="card")
    listed = tag("dl", *rows, class_="facts")
    return tag("section", title, spans_picture(spans, release, now), listed, class_="card")


def _span(span: Span, now: float) -> Markup:
    until = now if span.until is None else span.until
    end = "still" if span.until is None else f"until {moment(span.until)}"
    long = tag("span", format_duration(max(0.0, until - span.since)), class_="age")
    return tag("span", f"{moment(span.since)}, {end}", tag("span", f" · {shown(span.act)}", class_="muted"), " ", long)


def history(acts: Sequence[Act], release: str, now: float) -> Markup:
    """Everything that was done to it, the youngest first."""
    ours = [act for act in reversed(acts) if release in (act.release, act.previous)]
    rows = [
        tag(
            "tr",
            tag("td", ago(seconds_of(act.at), now), class_="nowrap"),
            tag("td", shown(act.act)),
            tag("td", _what(act, release)),
            tag("td", _who(act), class_="muted"),
            tag("td", shown(act.reason), class_="muted"),
        )
        for act in ours[:_MOST_ACTS]
    ]
    more = len(ours) - len(rows)
    if more > 0:
        rows.append(tag("tr", tag("td", f"and {more:,} before", colspan=5, class_="muted")))
    title = tag("h2", "History")
    if not rows:
        nothing = tag("p", "The history of the name says nothing of it.", class_="muted")
        return tag("section", title, nothing, class_="card")
    table = tag("table", tag("tbody", *rows), class_="grid")
    return tag("section", title, tag("div", table, class_="scroll tall"), class_="card")


def _who(act: Act) -> Markup:
    """Who asked for it, and whose process did it, where that is somebody else."""
    account = name_of(f"{act.user}@{act.host}") if act.user else None
    if not act.by:
        return account or Markup("")
    asked = name_of(act.by, class_="asked")
    return joined([asked, account], " through ")


def _what(act: Act, release: str) -> Markup:
    if not act.alias:
        return tag("span", "")
    if act.release == release:
        return tag("span", name_of(act.alias), " → this")
    return tag("span", name_of(act.alias), " → ", name_of(act.release, class_="mono"), " instead")
