"""Addresses are shown without secrets."""

from __future__ import annotations

import pytest

from ckptcore.rules.addresses import public_address


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://host:4200/api", "http://host:4200/api"),
        ("https://ops:s3cret@host/api", "https://host/api"),
        ("http://a:b@c@host:1/api?token=x#y", "http://host:1/api"),
        ("http://ops:s3cret@[", "http://["),
        ("ops:s3cret@host:4200/api", "host:4200/api"),
        ("", ""),
    ],
)
def test_a_secret_is_left_out(url: str, shown: str) -> None:
    assert public_address(url) == shown
