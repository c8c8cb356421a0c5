"""The rules of an audit that need no registry: times, and which lines of a history were cut."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore.rules.audit import FoundShelf, check_shelf, is_newer, parse_since
from ckptcore.rules.audit_journal import audited_line, journal_head, parse_journal
from ckptcore.rules.fingerprint import FileStamp
from ckptcore.rules.release import Act

NOW = datetime(2024, 5, 10, 12, tzinfo=UTC)
ACT = Act(at="2024-05-01T00:00:00Z", act="publish", release="step-1_id-0_000000000000", alias="latest", reason="ä{\n")


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("7d", NOW - timedelta(days=7)),
        ("90m", NOW - timedelta(minutes=90)),
        ("2024-05-01", datetime(2024, 5, 1, tzinfo=UTC)),
        ("2024-05-01T12:30", datetime(2024, 5, 1, 12, 30, tzinfo=UTC)),
        ("2024-05-01T12:30+02:00", datetime(2024, 5, 1, 12, 30, tzinfo=timezone(timedelta(hours=2)))),
    ],
)
def test_since_is_an_age_or_a_date(text: str, moment: datetime) -> None:
    assert parse_since(text, NOW) == moment


@given(st.text(max_size=12))
def test_any_other_since_is_refused_with_a_sentence(text: str) -> None:
    try:
        moment = parse_since(text, NOW)
    except ValueError:
        return
    assert moment.tzinfo


@pytest.mark.parametrize(
    ("created_at", "expected"),
    [
        ("2024-05-10T12:00:00Z", True),
        ("2024-05-10T11:59:59Z", False),
        ("2024-05-10T11:59:59", True),
        ("", True),
        ("long ago", True),
    ],
)
def test_what_does_not_tell_its_age_counts_as_newer(created_at: str, expected: bool) -> None:
    assert is_newer(created_at, NOW) is expected


def history_codes(history: bytes) -> list[tuple[str, bool]]:
    findings = check_shelf(FoundShelf("n", (), (), (), (), (), history, is_locked=False), NOW)
    return [(issue.code, True) for issue in findings.issues] + [(note.code, False) for note in findings.notes]


@given(st.integers(1, len(ACT.to_line()) - 2), st.booleans())
def test_a_line_cut_anywhere_is_a_note(at: int, is_last: bool) -> None:
    cut = ACT.to_line()[:at]
    assert history_codes(ACT.to_line() + cut + (b"" if is_last else b"\n" + ACT.to_line())) == [("history-cut", False)]


@pytest.mark.parametrize(
    "line", [b"null", b"{}", b"garbage", b'{"at": 1}', b"\0\0", b'{"at": "\0\0', b"\xff\xfe", b"}"]
)
def test_any_other_line_is_damage(line: bytes) -> None:
    assert history_codes(line + b"\n" + ACT.to_line()) == [("history", True)]


STAMPS = st.builds(FileStamp, st.text(), st.integers(0, 1 << 60), st.integers(0, 1 << 62), st.integers(0, 1 << 62))


@given(st.dictionaries(st.tuples(st.text(), STAMPS), st.text("0123456789abcdef", min_size=64), min_size=1), st.data())
def test_a_journal_reads_back_and_a_cut_one_in_part(
    digests: dict[tuple[str, FileStamp], str], data: st.DataObject
) -> None:
    lines = [audited_line(path, stamp, sha256) for (path, stamp), sha256 in digests.items()]
    head = journal_head("2024-05-01T00:00:00Z")
    journal = head + b"".join(lines)
    whole = parse_journal(journal)
    assert whole is not None
    assert (whole.begun_at, whole.digests) == ("2024-05-01T00:00:00Z", digests)
    cut = parse_journal(journal[: data.draw(st.integers(0, len(journal)))])
    assert cut is None or cut.digests.items() <= digests.items()


@given(st.binary())
def test_any_bytes_are_a_journal_or_none(content: bytes) -> None:
    parse_journal(content)
    parse_journal(journal_head("now") + content)
