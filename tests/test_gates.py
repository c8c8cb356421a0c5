"""Gates on the way to a release: nothing becomes visible and no alias moves before each of them is passed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from ckptcore import Choice, merge, publish, resolve, run
from ckptcore.errors import (
    Busy,
    InvalidName,
    PaddleMissing,
    ReleaseNotFound,
    SigningMissing,
    SmokeFailed,
)
from ckptcore.publishing import discard, pass_gates, publish_staged, stage
from ckptcore.registry import pointed_to, shelf_of
from ckptcore.rules.gates import DeviceCheck, Gate, GateReport, Signature, SmokeTest
from ckptcore.storage.staging import held
from ckptcore.validating import validate
from tasks.gate import gate
from tests.builders import SavedCheckpoint, write_trainer_run
from tests.command import REPOSITORY, ckpt

GOOD = SmokeTest("tests.smoke_functions:good")
BAD = SmokeTest("tests.smoke_functions:says_no")


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(REPOSITORY)
    saved = SavedCheckpoint().tensor("w", [[1.0, 1.5], [2, 3]], grid=(2, 1)).tensor("b", [1.0, 7])
    return write_trainer_run(tmp_path / "output", {10: saved})


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    return tmp_path / "registry"


def assert_nothing_there(registry: Path) -> None:
    assert os.listdir(registry / "tiny" / "releases") == []
    assert os.listdir(registry / "tiny" / ".staging") == []
    assert not (registry / "tiny" / "latest").is_symlink()
    assert not (registry / "tiny" / "history.jsonl").exists()


def test_a_release_that_passes_is_published_with_what_it_passed(training: Path, registry: Path) -> None:
    published = run(Choice(str(training)), registry, "tiny", gates=[GOOD])
    [report] = published.gates
    assert (report.gate, report.by, report.changed) == ("smoke", GOOD.function, False)
    assert resolve(registry, "tiny") == Path(published.path)
    assert published.to_json()["gates"] == [report.to_json()]


def test_a_release_that_fails_is_never_visible_and_not_kept(training: Path, registry: Path) -> None:
    with pytest.raises(SmokeFailed, match="returned False"):
        run(Choice(str(training)), registry, "tiny", gates=[BAD])
    assert_nothing_there(registry)
    assert run(Choice(str(training)), registry, "tiny", gates=[GOOD]).did_work


def test_a_later_gate_does_not_run_after_a_failure(training: Path, registry: Path, tmp_path: Path) -> None:
    hang = SmokeTest("tests.smoke_functions:hangs")
    with pytest.raises(SmokeFailed, match="says_no"):
        run(Choice(str(training)), registry, "tiny", gates=[BAD, hang])


def test_an_output_passes_the_gates_in_the_registry(training: Path, registry: Path, tmp_path: Path) -> None:
    merge(Choice(str(training)).planned(), tmp_path / "out")
    with pytest.raises(SmokeFailed):
        publish(tmp_path / "out", registry, "tiny", gates=[BAD])
    assert_nothing_there(registry)
    published = publish(tmp_path / "out", registry, "tiny", gates=[GOOD])
    assert [report.gate for report in published.gates] == ["smoke"]


def test_where_all_stands_nothing_is_checked(training: Path, registry: Path) -> None:
    run(Choice(str(training)), registry, "tiny")
    again = run(Choice(str(training)), registry, "tiny", gates=[BAD])
    assert (again.did_work, again.gates) == (False, ())


def test_another_alias_moves_to_a_published_release_only_through_the_gates(training: Path, registry: Path) -> None:
    first = run(Choice(str(training)), registry, "tiny", alias="candidate")
    with pytest.raises(SmokeFailed):
        run(Choice(str(training)), registry, "tiny", alias="production", gates=[BAD])
    assert pointed_to(shelf_of(registry, "tiny"), "production") == ""
    assert not validate(first.path).issues  # what is visible stays
    gates = [SmokeTest("tests.smoke_functions:needs_the_alias_unmoved")]
    second = run(Choice(str(training)), registry, "tiny", alias="production", gates=gates)
    assert [report.gate for report in second.gates] == ["smoke"]
    assert resolve(registry, "tiny@production") == Path(first.path)


def test_nobody_publishes_a_release_that_is_being_tried(training: Path, registry: Path) -> None:
    staged = stage(Choice(str(training)).planned(), registry, "tiny")
    with held(Path(staged.path)), pytest.raises(Busy):
        pass_gates(staged, [GOOD])
    publish_staged(staged)
    with pytest.raises(Busy, match="published it meanwhile"):
        pass_gates(staged, [GOOD])
    assert os.listdir(registry / "tiny" / ".staging") == []


def test_what_was_thrown_away_passes_no_gate(training: Path, registry: Path) -> None:
    staged = stage(Choice(str(training)).planned(), registry, "tiny")
    discard(staged)
    with pytest.raises(ReleaseNotFound):
        pass_gates(staged, [GOOD])


def test_a_file_called_as_the_signature_is_not_attached(training: Path, registry: Path, tmp_path: Path) -> None:
    (tmp_path / "model.sig").write_text("{}")
    with pytest.raises(InvalidName, match=r"model\.sig"):
        run(Choice(str(training)), registry, "tiny", attach=[tmp_path / "model.sig"])


MISSING: list[tuple[str, Gate, type[Exception], str]] = [
    ("paddle", DeviceCheck(), PaddleMissing, "ckptcore[paddle]"),
    ("model_signing", Signature("key.pem"), SigningMissing, "ckptcore[sign]"),
]


@pytest.mark.parametrize(("module", "wanted", "leaf", "extra"), MISSING, ids=[entry[0] for entry in MISSING])
def test_a_missing_extra_is_named_before_anything_is_written(
    training: Path, registry: Path, module: str, wanted: Gate, leaf: type[Exception], extra: str
) -> None:
    if find_spec(module):
        pytest.skip(f"{module} is installed")
    with pytest.raises(leaf) as refusal:
        run(Choice(str(training)), registry, "tiny", gates=[wanted])
    assert f"pip install '{extra}'" in str(refusal.value)
    assert not registry.exists()


def test_the_command_says_which_gates_were_passed(
    training: Path, registry: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", training, registry, "--name", "tiny", "--smoke", GOOD.function]
    outcome = ckpt(capfd, *arguments)
    assert outcome.status == 0, outcome
    assert f"smoke: {GOOD.function} accepted it in" in outcome.stdout
    again = json.loads(ckpt(capfd, *arguments, "--alias", "other", "--json").stdout)
    assert [report["by"] for report in again["gates"]] == [GOOD.function]


def test_the_command_tells_the_last_lines_of_what_failed(
    training: Path, registry: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    function = "tests.smoke_functions:raises"
    merge(Choice(str(training)).planned(), tmp_path / "out")
    for arguments in (["run", training], ["publish", tmp_path / "out"]):
        outcome = ckpt(capfd, *arguments, registry, "--name", "tiny", "--smoke", function, "--smoke-timeout", 60)
        assert (outcome.status, outcome.stdout) == (1, "")
        assert outcome.stderr.splitlines()[-1] == "  output 20: ValueError: the logits are not finite"
        assert_nothing_there(registry)


@pytest.mark.parametrize(
    "wrong", [["--smoke", "no function"], ["--smoke", "m:f", "--smoke-timeout", "0"], ["--check", "tpu"]], ids=" ".join
)
def test_wrong_usage(training: Path, registry: Path, capfd: pytest.CaptureFixture[str], wrong: list[str]) -> None:
    assert ckpt(capfd, "run", training, registry, "--name", "tiny", *wrong).status == 2
    assert not registry.exists()


def test_the_task_gives_what_the_library_gives(training: Path, registry: Path) -> None:
    staged = stage(Choice(str(training)).planned(), registry, "tiny")
    with disable_run_logger():
        [report] = gate.fn(staged, [GOOD])
        assert isinstance(report, GateReport)
        with pytest.raises(SmokeFailed):
            gate.fn(staged, [BAD])
    assert not Path(staged.path).exists()


def test_help_needs_nothing_of_what_the_gates_need() -> None:
    script = (
        "import sys, ckptcore.cli, ckptcore.publishing; "
        "sys.exit(bool({'paddle', 'model_signing', 'cryptography', 'prefect'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, check=True)


def test_a_key_that_is_none_is_refused_before_anything_is_written(
    training: Path, registry: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "key.pem").write_text("no key")
    outcome = ckpt(capfd, "run", training, registry, "--name", "tiny", "--sign-key", tmp_path / "key.pem")
    assert outcome.status == 1
    expected = "private key on the curve P-256" if find_spec("model_signing") else "pip install 'ckptcore[sign]'"
    assert expected in outcome.stderr
    assert not registry.exists()
