"""Names from disks in every place that a page shows one in: whatever they hold, the page reaches the browser."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ckptcore import Choice, run
from ckptcore.dashboard import overview, pipeline_page, release_facts, timeline
from ckptcore.dashboard.changes_panel import against_field
from ckptcore.dashboard.context import Context
from ckptcore.dashboard.markup import Markup, tag
from ckptcore.dashboard.pruning import drawn, planned_of
from ckptcore.dashboard.refreshing import Refresher
from ckptcore.dashboard.results import ReleaseRead
from ckptcore.observing import Observer
from ckptcore.rules.observed import AliasSeen, PipelineSeen, ReleaseSeen, Watched
from ckptcore.rules.release import Act
from tests.builders import SavedCheckpoint, write_trainer_run

NAMES = {
    "no text": b"not\xfftext".decode(errors="surrogateescape"),
    "markup": "\"><img src=x onerror='alert(1)'>",
    "long": "n" * 250,
    "turned": "\N{RIGHT-TO-LEFT OVERRIDE}gpj\n\x1b[31m",
}


@pytest.fixture(params=list(NAMES.values()), ids=list(NAMES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def seen(tmp_path: Path, name: str) -> PipelineSeen:
    """A source, a component, a registry, an alias and a pipeline, each of that name, as a look finds them."""
    source, registry = tmp_path / "runs" / name, tmp_path / "registries" / name
    saved = SavedCheckpoint().tensor("w", [1.0])
    write_trainer_run(source, {100: saved})
    release = run(Choice(str(write_trainer_run(tmp_path / "run", {100: saved}))), registry, "plain").release
    os.symlink(f"releases/{release}", registry / "plain" / name)
    os.symlink(f"releases/{name}", registry / "plain" / "lost")
    watched = Watched("plain", "plain", source=str(source), registry=str(registry), pipeline=name)
    return Observer([watched]).look().pipelines[0]


def assert_arrives(markup: Markup) -> None:
    """It can be sent, and no name in it became an element."""
    assert len(markup) > 50
    json.dumps(markup, ensure_ascii=False).encode()
    assert "<img" not in markup
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in markup
    assert "\x1b" not in markup


def parts_of(context: Context, seen: PipelineSeen, name: str) -> Iterator[Markup]:
    now = time.time()
    verdict = replace(overview.judged(context, seen, now), sentence=f"{name} is damaged")
    yield overview._card(context, seen, verdict, now)
    yield overview._row(context, seen, verdict, now)
    yield pipeline_page._head(context, seen, now)
    yield pipeline_page._left(context, seen, now)
    yield timeline._versions(seen, None, 1)
    another = ReleaseSeen("step-1_id-0_0123456789abcdef", 1, 0, 1.0, 1, False)
    with_more = replace(
        seen, releases=(*seen.releases, another), aliases=(*seen.aliases, AliasSeen(name, name, None, 1.0, True))
    )
    yield against_field(with_more, another.name, name)


def test_a_name_in_each_place_breaks_no_page(seen: PipelineSeen, name: str) -> None:
    assert name in [alias.alias for alias in seen.aliases]
    told = replace(seen, troubles=(f"{name} cannot be read",))
    told = replace(told, versions=tuple(replace(each, reason=name) for each in told.versions))
    for part in parts_of(Context(Refresher([seen.watched])), told, name):
        assert_arrives(part)


def test_a_name_in_a_manifest_and_in_a_history_breaks_no_page(name: str) -> None:
    head = {
        "source": {
            "step": 1,
            "unique_id": 0,
            "component": name,
            "path": f"/{name}",
            "paddle_format": name,
            "fingerprint": "",
        },
        "software": {name: name},
        "created_at": "2027-01-01T00:00:00Z",
        "plan_digest": "",
        "identity": "",
        "manifest": ["manifest.json", "00"],
        "is_signed": False,
        "files": [[name, 1, "00"]],
    }
    read = ReleaseRead()
    read.take_head(head)
    at = "2027-01-01T00:00:00Z"
    acts = [Act(at, "promote", name, name, name, user=name, host=name, reason=name, by=name)]
    for part in (
        release_facts.made_from(read, "plain"),
        release_facts.files(read),
        release_facts.aliases_over_time(acts, name, time.time()),
        release_facts.history(acts, name, time.time()),
        drawn(planned_of([{"kind": "drop", "where": name, "finding": name}])),
    ):
        assert_arrives(part)


def test_a_name_that_nobody_escaped_is_escaped_where_it_becomes_markup() -> None:
    assert tag("p", NAMES["no text"], title=NAMES["no text"]) == '<p title="not\\udcfftext">not\\udcfftext</p>'
