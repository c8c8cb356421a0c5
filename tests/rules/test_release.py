"""Names in a registry, and the history of its acts."""

from __future__ import annotations

import pytest

from ckptcore.errors import InvalidName
from ckptcore.rules.release import Act, check_name, is_published, parse_history, parse_reference, release_name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        ".hidden",
        "-rf",
        "a/b",
        "/abs",
        "a\0b",
        "a@b",
        "new\nline",
        "releases",
        "history.jsonl",
        " x",
        "x" * 201,
        "a\\b",
    ],
)
def test_a_name_that_could_leave_or_confuse_the_registry_is_refused(name: str) -> None:
    with pytest.raises(InvalidName, match="name"):
        check_name(name, "name")


@pytest.mark.parametrize("name", ["llama", "Llama 3 (final)", "модель", "a.b-c_d", "x" * 200])
def test_names_that_people_use_are_taken(name: str) -> None:
    assert check_name(name, "name") == name


def test_a_reference_has_an_alias_by_default() -> None:
    assert parse_reference("llama").ref == "latest"
    assert parse_reference("llama@production").ref == "production"
    with pytest.raises(InvalidName):
        parse_reference("llama@")
    with pytest.raises(InvalidName):
        parse_reference("llama@../../etc")


def test_a_release_name_tells_the_version_and_the_content() -> None:
    assert release_name(10, 0, "ab" * 32) == "step-10_id-0_abababababab"
    assert release_name(None, 7, "ab" * 32) == "id-7_abababababab"


def test_history_survives_a_line_that_a_crash_cut() -> None:
    acts = (Act("t1", "publish", "r1", "latest"), Act("t2", "publish", "r2", "latest", previous="r1", reason="why"))
    data = acts[0].to_line() + acts[1].to_line()[:20] + b"\n" + acts[1].to_line()
    assert parse_history(data) == acts
    assert parse_history(b"") == ()


def test_a_release_counts_as_published_until_it_is_pruned() -> None:
    published, pruned = Act("t", "publish", "r", "latest"), Act("t", "prune", "r")
    assert is_published([published], "r", "latest")
    assert not is_published([published], "r", "production")
    assert not is_published([published], "other", "latest")
    assert not is_published([published, pruned], "r", "latest")
    assert is_published([published, pruned, published], "r", "latest")
