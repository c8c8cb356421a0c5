"""What stands under the name of a file is read only if it is one, and ends."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from ckptcore.errors import StorageError
from ckptcore.storage.digests import sha256_of
from ckptcore.storage.regular_files import lies_at, read_document


@pytest.fixture(params=["FIFO", "socket", "character device", "directory"])
def special(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "file"
    match request.param:
        case "FIFO":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(path))
        case "character device":
            path.symlink_to("/dev/zero")
        case _:
            path.mkdir()
    return path


def test_nothing_special_is_read(special: Path) -> None:
    with pytest.raises(StorageError, match=r"file: is a .*, no regular file"):
        read_document(special)
    with pytest.raises(StorageError, match=r"file: is a .*, no regular file"):
        sha256_of(special, lambda _: None)


def test_a_document_has_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "document"
    path.write_bytes(b"12345")
    (tmp_path / "link").symlink_to(path)
    assert read_document(tmp_path / "link", 5) == b"12345"
    with pytest.raises(StorageError, match="expected at most 4 bytes, found 5"):
        read_document(path, 4)


def test_what_cannot_be_looked_at_is_not_taken_for_absent(tmp_path: Path) -> None:
    """The history or a configuration that the file system hides would be left out of a release for good."""
    (tmp_path / "to-nowhere").symlink_to("nowhere")
    assert lies_at(tmp_path / "to-nowhere")
    assert not lies_at(tmp_path / "nothing")
    assert not lies_at(tmp_path / "to-nowhere" / "below")
    with pytest.raises(StorageError, match="cannot look at"):
        lies_at(tmp_path / ("x" * 300))
