"""The pictures: well-formed whatever a name holds, of bounded size, and showing what they are told."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore.detecting import list_versions
from ckptcore.rules.pictures import Cell, CellState, cells_of, rank_map, step_times
from ckptcore.rules.steps import StepTime
from ckptcore.verifying import verify
from tests.builders import SavedCheckpoint, write_trainer_run

NAMES = st.text(max_size=40) | st.sampled_from(
    ["</text><script>alert(1)</script>", '" onload="x', "a&b\x00\x1b[2J\ud800"]
)
CELLS = st.builds(Cell, st.integers(0, 10**6), NAMES, st.sampled_from(CellState), st.none() | st.integers(0, 2**50))
STEPS = st.builds(
    StepTime,
    NAMES,
    st.floats(0, 1e6),
    st.floats(0, 1e6),
    st.floats(0, 1e6),
    st.integers(0, 2**60),
    st.sampled_from(["", "Busy"]),
)
ELEMENTS = {"svg", "text", "path", "rect", "title"}


def parsed(svg: str) -> ElementTree.Element:
    """The picture, of which every element and attribute is one that the drawing makes."""
    root = ElementTree.fromstring(svg)
    for element in root.iter():
        assert element.tag.removeprefix("{http://www.w3.org/2000/svg}") in ELEMENTS
        assert not [name for name in element.attrib if name.startswith("on") or "href" in name]
    return root


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in parsed(svg).iter() if element.tag.endswith("text")]


@given(NAMES, st.lists(CELLS, max_size=200), st.booleans())
def test_a_map_is_a_picture_whatever_the_names_are(title: str, cells: list[Cell], hints: bool) -> None:
    parsed(rank_map(title, cells, hints=hints))


@given(NAMES, st.lists(STEPS, max_size=30))
def test_times_are_a_picture_whatever_the_names_are(title: str, steps: list[StepTime]) -> None:
    parsed(step_times(title, steps))


def of_ranks(count: int, trouble: dict[int, CellState]) -> Sequence[Cell]:
    return [
        Cell(rank, f"{rank}_0.distcp", state, None if state is CellState.MISSING else 1_000_000 + rank)
        for rank in range(count)
        for state in [trouble.get(rank, CellState.PRESENT)]
    ]


@pytest.mark.parametrize(("ranks", "most_bytes"), [(8, 2_000), (1_024, 50_000), (100_000, 110_000)])
def test_a_map_of_many_ranks_is_small_enough_for_a_database(ranks: int, most_bytes: int) -> None:
    assert len(rank_map("a run", of_ranks(ranks, {}))) < most_bytes


def test_every_rank_has_a_field_of_its_own_up_to_thousands() -> None:
    trouble = {5: CellState.MISSING, 1_023: CellState.DAMAGED, 7: CellState.STALE}
    svg = rank_map("a run", of_ranks(1_024, trouble))
    fields = {match[1]: match[2].count("z") for match in re.finditer(r'(?:fill|stroke)="(#\w+)"[^>]* d="([^"]*)"', svg)}
    assert sorted(fields.values()) == [1, 1, 1, 1_021]
    told = texts(svg)
    assert "1,021 present, 1 stale, 1 missing, 1 damaged; 1.02 GB in all" in told
    assert [line for line in told if "distcp" in line] == [
        "damaged: 1023_0.distcp",
        "missing: 5_0.distcp",
        "stale: 7_0.distcp",
    ]


def test_a_field_of_several_ranks_shows_the_worst_of_them() -> None:
    svg = rank_map("a run", of_ranks(50_000, {49_999: CellState.DAMAGED, 0: CellState.MISSING}), hints=True)
    assert "25 ranks a field" in texts(svg)[1]
    hints = [element.text or "" for element in parsed(svg).iter() if element.tag.endswith("title")]
    assert len(hints) == 2_000
    assert hints[0].startswith("0_0.distcp: missing\n1_0.distcp: present, 1,000,001 bytes\n")
    assert svg.count("<path") == 3


def test_the_height_of_a_field_is_the_size_of_its_file() -> None:
    cells = [Cell(0, "0_0.distcp", CellState.PRESENT, 1_000), Cell(1, "1_0.distcp", CellState.PRESENT, 500)]
    heights = [float(height) for height in re.findall(r"h[\d.]+v([\d.]+)h-", rank_map("a run", cells))]
    assert heights[0] == pytest.approx(2 * heights[1])


def test_a_damaged_version_is_drawn_as_it_was_found(tmp_path: Path) -> None:
    saved = SavedCheckpoint().tensor("w", np.arange(48, dtype=np.float32).reshape(8, 6), grid=(4, 1))
    [version] = list_versions(write_trainer_run(tmp_path, {1: saved}))

    directory = Path(version.directory)
    (directory / "1_0.distcp").unlink()
    (directory / "2_0.distcp").write_bytes((directory / "2_0.distcp").read_bytes()[:60])
    (directory / "9_0.distcp").write_bytes(b"of another save")
    cells = cells_of(verify(version).report)
    assert [(cell.rank, cell.state) for cell in cells] == [
        (0, CellState.PRESENT),
        (1, CellState.MISSING),
        (2, CellState.DAMAGED),
        (3, CellState.PRESENT),
        (9, CellState.STALE),
    ]
    assert cells[0].size_bytes == (directory / "0_0.distcp").stat().st_size
    assert cells[1].size_bytes is None


def test_times_have_a_row_a_verb_and_name_the_refusal() -> None:
    steps = [
        StepTime("detect", 0.0, 3.0, 1.0),
        StepTime("verify", 0.5, 2.0, 2.0),
        StepTime("merge", 4.0, 10.0, 10.0, 20_000_000_000),
        StepTime("validate", 14.0, 0.25, 0.25, 0, "ReleaseInvalid"),
    ]
    told = texts(step_times("llama", steps))
    assert told[0] == "llama"
    assert told[1:9] == [
        "detect",
        "1 s",
        "verify",
        "2 s",
        "merge",
        "10 s, 20 GB, 2 GB/s",
        "validate",
        "250 ms, ReleaseInvalid",
    ]
