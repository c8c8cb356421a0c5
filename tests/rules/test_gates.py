"""Which gates are asked for, in which order, and what names a function."""

from __future__ import annotations

import pytest

from ckptcore.errors import MappingError
from ckptcore.rules.gates import (
    DEFAULT_SMOKE_SECONDS,
    DeviceCheck,
    EngineCheck,
    Gate,
    GateOptions,
    GateReport,
    Signature,
    SmokeTest,
    check_function,
    divided,
    gpus_of,
)
from ckptcore.rules.selection import Selection


def test_nothing_asked_for_is_no_gate() -> None:
    assert GateOptions().gates() == ()


def test_a_release_is_signed_last() -> None:
    options = GateOptions(sign_key="key.pem", smoke="m:f", smoke_timeout_seconds=3, check=True)
    assert options.gates() == (DeviceCheck(), SmokeTest("m:f", 3), Signature("key.pem"))
    assert GateOptions(smoke="m:f").gates() == (SmokeTest("m:f", DEFAULT_SMOKE_SECONDS),)


def test_what_is_compared_is_what_was_selected() -> None:
    chosen = Selection(("model",), include=("*.weight",))
    assert GateOptions(engine=True).gates(chosen) == (EngineCheck(chosen),)
    with pytest.raises(MappingError, match="leave out the map and dtype"):
        GateOptions(engine=True).gates(chosen, keeps_tensors=False)
    assert GateOptions(check=True).gates(keeps_tensors=False) == (DeviceCheck(),)


def test_which_gates_need_devices() -> None:
    gates: tuple[Gate, ...] = GateOptions(True, True, "m:f", smoke_gpus=3, sign_key="key.pem").gates()
    assert [gpus_of(gate) for gate in gates] == [1, 1, 3, 0]
    assert divided(gates) == (gates[:3], gates[3:])
    assert divided(GateOptions(smoke="m:f").gates()) == ((), (SmokeTest("m:f"),))


@pytest.mark.parametrize("text", ["m:f", "pkg.module:Class.method", "_a1:b_2", "模型:f"])
def test_functions(text: str) -> None:
    assert check_function(text) == text


@pytest.mark.parametrize(
    "text", ["", "m", "m:", ":f", "m.f", "m:f:g", "a b:f", "m:f()", "../m:f", "m:1", "-m:f", "m:f\n"]
)
def test_what_names_no_function(text: str) -> None:
    with pytest.raises(ValueError, match="expected module:function"):
        check_function(text)


def test_a_report_as_json() -> None:
    report = GateReport("check", "cpu", "fine")
    assert GateReport.from_json(report.to_json()) == report
    assert report.to_json() == {
        "gate": "check",
        "by": "cpu",
        "finding": "fine",
        "changed": False,
    }
