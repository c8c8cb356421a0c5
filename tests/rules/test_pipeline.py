"""Which events are a source's: the same versions that a look at its directories gives."""

from __future__ import annotations

import pytest
from prefect.server.events.schemas.events import Resource, ResourceSpecification

from ckptcore.rules.pipeline import version_patterns


def takes(root: str, component: str | None, version: str) -> bool:
    """As Prefect's server matches them."""
    pattern = ResourceSpecification({"prefect.resource.id": version_patterns(root, component)})
    return pattern.matches(Resource({"prefect.resource.id": f"ckpt.version.{version}"}))


@pytest.mark.parametrize(
    ("version", "is_taken"),
    [
        ("/run/checkpoint-5/model_state/0", True),
        ("/run/checkpoint-10/dist_ckpt/11", True),
        ("/run/checkpoint-5/0", True),
        ("/run/model_state/0", True),
        ("/run/7", True),
        ("/run/checkpoint-5/optimizer_state/0", False),
        ("/run/checkpoint-5/master_weight/0", False),
        ("/run/ema_state/0", False),
        ("/run2/checkpoint-5/model_state/0", False),
        ("/run/older/checkpoint-5/optimizer_state/0", False),
        ("/run/older/model_state/0", False),
    ],
)
def test_without_a_component_a_source_takes_the_weights(version: str, is_taken: bool) -> None:
    assert takes("/run", None, version) is is_taken


@pytest.mark.parametrize(
    ("version", "is_taken"),
    [
        ("/run/checkpoint-5/ema_state/0", True),
        ("/run/ema_state/0", True),
        ("/run/checkpoint-5/model_state/0", False),
        ("/run/checkpoint-5/0", False),
        ("/run/0", False),
    ],
)
def test_with_a_component_it_takes_that_one(version: str, is_taken: bool) -> None:
    assert takes("/run", "ema_state", version) is is_taken


def test_a_component_of_a_step_is_a_source_of_its_own() -> None:
    for component in (None, "optimizer_state"):
        assert takes("/run/checkpoint-5/optimizer_state", component, "/run/checkpoint-5/optimizer_state/3")
    assert not takes("/run/checkpoint-5/optimizer_state", "model_state", "/run/checkpoint-5/optimizer_state/3")


def test_a_path_that_looks_like_a_pattern() -> None:
    assert takes("/a[1]/r*n", None, "/a[1]/r*n/checkpoint-5/model_state/0")
    assert not takes("/a[1]/r*n", None, "/a1/run/checkpoint-5/model_state/0")
