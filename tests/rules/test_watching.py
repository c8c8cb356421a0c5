"""When a version counts as written, and how often is looked."""

from __future__ import annotations

import pytest

from ckptcore.rules.watching import Sighting, Track, follow, is_due, known, next_pause


def due(sightings: list[Sighting], settle: int, track: Track | None = None) -> list[bool]:
    found = []
    for sighting in sightings:
        before, track = track, follow(track, sighting)
        found.append(is_due(track, sighting, before, settle))
        if found[-1]:
            track = track.judged(is_open=False)
    return found


A, B, DONE = Sighting("a"), Sighting("b"), Sighting("d", is_marked_finished=True)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([A, A, A, A], [False, False, True, False]),  # settled once
        ([A, A, B, A, A, A], [False, False, False, False, False, True]),
        ([DONE, DONE], [True, False]),  # its writer says so
        ([A, DONE], [False, False]),  # the marks may be those of the save that is overwritten
        ([A, A, A, B, B, B], [False, False, True, False, False, True]),  # overwritten in place
    ],
)
def test_a_version_is_due_once_when_nothing_changes(seen: list[Sighting], expected: list[bool]) -> None:
    assert due(seen, 3) == expected


def test_one_look_may_be_enough() -> None:
    assert due([A, A, B], 1) == [True, False, True]


def test_what_was_there_before_is_due_when_it_changes() -> None:
    assert due([A, A, A, B, B, B], 3, known(A)) == [False] * 5 + [True]


def test_pauses_grow_while_nothing_happens() -> None:
    pauses = [5.0]
    for _ in range(8):
        pauses.append(next_pause(pauses[-1], False, 5.0, 60.0))
    assert pauses == sorted(pauses)
    assert pauses[1] > 5.0
    assert pauses[-1] == 60.0
    assert next_pause(60.0, True, 5.0, 60.0) == 5.0
    assert next_pause(5.0, False, 5.0, 1.0) == 5.0  # never quicker than it was asked to be
