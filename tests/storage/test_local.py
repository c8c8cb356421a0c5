"""Files of a directory are regular files inside it, read where asked, and nothing else is opened."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from ckptcore.errors import DamagedFile, StorageError
from ckptcore.rules.fingerprint import Fingerprint
from ckptcore.rules.versions import Entry
from ckptcore.storage.local import LocalReader, fingerprint, list_directory


def test_a_listing_is_sorted_and_follows_links(tmp_path: Path) -> None:
    (tmp_path / "b").touch()
    (tmp_path / "a").mkdir()
    (tmp_path / "c").symlink_to("a")
    (tmp_path / "d").symlink_to("nowhere")
    (tmp_path / "e").symlink_to("e")
    assert list_directory(tmp_path) == (
        Entry("a", True), Entry("b", False), Entry("c", True), Entry("d", False), Entry("e", False),
    )  # fmt: skip


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot list") as caught:
        list_directory(tmp_path / "absent")
    assert caught.value.errno == errno.ENOENT


def test_reads_end_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(range(100)))
    with LocalReader(tmp_path, "f") as reader:
        assert reader.size_bytes == 100
        assert reader.read_at(10, 5) == bytes(range(10, 15))
        assert reader.read_at(95, 1 << 60) == bytes(range(95, 100))
        assert reader.read_at(100, 1) == reader.read_at(1 << 40, 8) == b""
        buffer = bytearray(8)
        assert reader.readinto_at(96, memoryview(buffer)) == 4
        assert bytes(buffer) == bytes([96, 97, 98, 99, 0, 0, 0, 0])


@pytest.mark.parametrize("name", ["", ".", "..", "../f", "sub/f", "/etc/passwd", "f\0"])
def test_a_name_that_leads_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    with pytest.raises(DamagedFile, match="no file name"):
        LocalReader(tmp_path, name)


def test_links_are_followed_inside_the_directory_only(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "f").write_bytes(b"here")
    (tmp_path / "secret").write_bytes(b"there")
    (tmp_path / "inside-not").mkdir()
    (tmp_path / "inside-not" / "f").write_bytes(b"there")
    (inside / "good").symlink_to("f")
    (inside / "out").symlink_to("../secret")
    (inside / "beside").symlink_to("../inside-not/f")
    (inside / "twice").symlink_to("out")
    with LocalReader(inside, "good") as reader:
        assert reader.read_at(0, 9) == b"here"
    for name in ("out", "beside", "twice"):
        with pytest.raises(DamagedFile, match="leads out of its directory"):
            LocalReader(inside, name)


def test_links_to_nowhere_and_in_circles_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "nowhere").symlink_to("absent")
    (tmp_path / "circle").symlink_to("circle")
    for name, reason in (("nowhere", errno.ENOENT), ("circle", errno.ELOOP), ("absent", errno.ENOENT)):
        with pytest.raises(StorageError) as caught:
            LocalReader(tmp_path, name)
        assert caught.value.errno == reason


def test_what_is_no_regular_file_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(tmp_path / "socket"))  # the address must be short
        for name, kind in (
            ("directory", "a directory"), ("fifo", "a FIFO"), ("link", "a FIFO"), ("socket", "a socket"),
        ):  # fmt: skip
            with pytest.raises(DamagedFile, match=f"is {kind}, no regular file"):
                LocalReader(tmp_path, name)


def test_a_fingerprint_tells_what_changed(tmp_path: Path) -> None:
    for name in ("kept", "longer", "rewritten", "replaced", "deleted"):
        (tmp_path / name).write_bytes(b"1234")
    names = ["replaced", "kept", "longer", "rewritten", "deleted", "kept"]
    before = fingerprint(tmp_path, names)
    assert [stamp.name for stamp in before.files] == ["deleted", "kept", "longer", "replaced", "rewritten"]
    assert before.changes_to(fingerprint(tmp_path, names)) == ()
    (tmp_path / "longer").write_bytes(b"12345")
    os.utime(tmp_path / "rewritten", ns=(0, 0))
    (tmp_path / "new").write_bytes(b"1234")
    (tmp_path / "new").rename(tmp_path / "replaced")
    (tmp_path / "deleted").unlink()
    after = fingerprint(tmp_path, names)
    assert [str(change) for change in before.changes_to(after)] == [
        "deleted: was deleted while it was being read",
        "longer: changed its size while it was being read: expected 4 bytes, found 5 bytes",
        "replaced: was replaced by another file while it was being read",
        "rewritten: was written to while it was being read",
    ]
    assert str(after.changes_to(before)[0]) == "deleted: appeared while the source was being read"


def test_the_digest_of_a_fingerprint_does_not_know_inodes(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"1234")
    before = fingerprint(tmp_path, ["f"])
    (tmp_path / "f").rename(tmp_path / "old")
    (tmp_path / "f").write_bytes(b"1234")
    os.utime(tmp_path / "f", ns=(before.files[0].mtime_ns, before.files[0].mtime_ns))
    after = fingerprint(tmp_path, ["f"])
    assert after != before
    assert after.digest == before.digest != Fingerprint(()).digest
