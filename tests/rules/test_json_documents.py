"""Whatever bytes are on a disk: a document, or one refusal."""

from __future__ import annotations

import os

import pytest

from ckptcore.rules.json_documents import NotJson, parse_json


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"9" * 5000,
        b'"\\ud800"',
        b'{"\\uD83D": 1}',
        b'"\xed\xa0\x80"',
    ],
)
def test_what_is_no_document(data: bytes) -> None:
    with pytest.raises(NotJson):
        parse_json(data)


def test_what_is_one() -> None:
    assert parse_json('{"é": [1, "\\ud83d\\ude00"]}'.encode()) == {"é": [1, "\U0001f600"]}
    assert os.fsencode(parse_json(b'"caf\\udce9"')) == b"caf\xe9"
