"""The page's own files, which anybody may ask for."""

from __future__ import annotations

import tracemalloc

from ckptcore.dashboard.theme import asset, asset_address


def test_there_are_the_files_and_no_others() -> None:
    found = asset("dashboard.css")
    assert found is not None
    assert found[1] == "text/css"
    assert asset_address("dashboard.css").startswith("/assets/dashboard.css?")
    assert asset("../theme.py") is None


def test_names_of_no_file_are_not_kept() -> None:
    tracemalloc.start()
    try:
        for number in range(1_000):
            assert asset(f"{number}{'x' * 1_000}") is None
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 100_000
