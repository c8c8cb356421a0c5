"""Signatures, held against model-signing's own command: what it verifies, what it notices, whose key it was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ckptcore import Choice, merge, publish, run
from ckptcore.errors import SigningFailed, SmokeFailed, StorageError
from ckptcore.publishing import pass_gates, publish_staged, stage
from ckptcore.rules.gates import Signature, SmokeTest
from ckptcore.validating import read_manifest, validate
from tests.builders import SavedCheckpoint, write_trainer_run
from tests.command import REPOSITORY, Outcome, ckpt

pytest.importorskip("model_signing", reason="needs the extra `sign`")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

pytestmark = pytest.mark.sign

PEM = serialization.Encoding.PEM
PRIVATE = serialization.PrivateFormat.PKCS8


@pytest.fixture
def training(tmp_path: Path) -> Path:
    saved = SavedCheckpoint().tensor("w", [[1.0, 1.5], [2, 3]], grid=(2, 1)).tensor("b", [1.0, 7])
    source = write_trainer_run(tmp_path / "output", {10: saved})
    (source / "checkpoint-10" / "config.json").write_text("{}")
    return source


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    return tmp_path / "registry"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return new_key(tmp_path / "key.pem")


def new_key(path: Path) -> Path:
    """A private key at ``path``, and the public one at ``path`` with ``.pub``."""
    key = ec.generate_private_key(ec.SECP256R1())
    path.write_bytes(key.private_bytes(PEM, PRIVATE, serialization.NoEncryption()))
    public = key.public_key().public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    path.with_suffix(".pub").write_bytes(public)
    return path


def model_signing_verify(release: str | Path, key: Path) -> Outcome:
    """The command that the documentation names, as a stranger with the public key runs it."""
    arguments = ["--signature", str(Path(release) / "model.sig"), "--public_key", str(key.with_suffix(".pub"))]
    done = subprocess.run(
        [sys.executable, "-m", "model_signing", "verify", "key", *arguments, str(release)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def assert_verified(release: str | Path, key: Path) -> None:
    outcome = model_signing_verify(release, key)
    assert (outcome.status, outcome.stdout) == (0, "Verification succeeded\n"), outcome


def test_a_signed_release_is_verified_by_model_signings_own_command(
    training: Path, registry: Path, key: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    outcome = ckpt(capfd, "run", training, registry, "--name", "tiny", "--sign-key", key)
    assert outcome.status == 0, outcome
    assert "sign: signed" in outcome.stdout
    [release] = (registry / "tiny" / "releases").iterdir()
    assert sorted(os.listdir(release)) == ["config.json", "manifest.json", "model.safetensors", "model.sig"]
    assert_verified(release, key)


def test_the_command_signs_an_output(
    training: Path, registry: Path, key: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    merge(Choice(str(training)).planned(), tmp_path / "out")
    outcome = ckpt(capfd, "publish", tmp_path / "out", registry, "--name", "tiny", "--sign-key", key)
    assert outcome.status == 0, outcome
    [release] = (registry / "tiny" / "releases").iterdir()
    assert_verified(release, key)
    assert not (tmp_path / "out" / "model.sig").exists()


@pytest.mark.parametrize("victim", ["manifest.json", "model.safetensors", "config.json"])
def test_a_changed_file_is_noticed(training: Path, registry: Path, key: Path, victim: str) -> None:
    release = Path(run(Choice(str(training)), registry, "tiny", gates=[Signature(str(key))]).path)
    data = (release / victim).read_bytes()
    (release / victim).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    outcome = model_signing_verify(release, key)
    assert outcome.status == 1
    assert victim in outcome.stderr


def test_a_file_added_and_another_key_are_noticed(training: Path, registry: Path, key: Path, tmp_path: Path) -> None:
    release = Path(run(Choice(str(training)), registry, "tiny", gates=[Signature(str(key))]).path)
    assert model_signing_verify(release, new_key(tmp_path / "other.pem")).status == 1
    (release / "extra.py").write_text("")
    assert "extra.py" in model_signing_verify(release, key).stderr


def test_the_signature_is_no_part_of_the_releases_identity(training: Path, tmp_path: Path, key: Path) -> None:
    plain = run(Choice(str(training)), tmp_path / "plain", "tiny")
    signed = run(Choice(str(training)), tmp_path / "signed", "tiny", gates=[Signature(str(key))])
    assert signed.release == plain.release
    assert "model.sig" not in [record.name for record in read_manifest(Path(signed.path)).files]
    assert validate(signed.path).issues == ()


def test_a_published_release_is_signed_later_and_once(training: Path, registry: Path, key: Path) -> None:
    gates = [Signature(str(key))]
    first = run(Choice(str(training)), registry, "tiny")
    second = run(Choice(str(training)), registry, "tiny", gates=gates)
    assert (second.path, second.did_work, second.gates[0].changed) == (first.path, True, True)
    assert_verified(second.path, key)
    before = {path: path.stat().st_mtime_ns for path in Path(first.path).iterdir()}
    third = run(Choice(str(training)), registry, "tiny", gates=gates)
    assert (third.did_work, third.gates[0].finding) == (False, "was signed with this key already")
    assert {path: path.stat().st_mtime_ns for path in Path(first.path).iterdir()} == before


@pytest.mark.parametrize("damaged", [False, True])
def test_another_key_does_not_replace_a_signature(
    training: Path, registry: Path, key: Path, tmp_path: Path, damaged: bool
) -> None:
    release = Path(run(Choice(str(training)), registry, "tiny", gates=[Signature(str(key))]).path)
    signature = release / "model.sig"
    if damaged:
        signature.write_bytes(signature.read_bytes()[:100])
    before = signature.read_bytes()
    other = new_key(tmp_path / "other.pem")
    with pytest.raises(SigningFailed, match="was made with another key"):
        run(Choice(str(training)), registry, "tiny", gates=[Signature(str(other))])
    assert signature.read_bytes() == before


def test_what_a_killed_run_left_staged_is_signed_anew(
    training: Path, registry: Path, key: Path, tmp_path: Path
) -> None:
    staged = stage(Choice(str(training)).planned(), registry, "tiny")
    (Path(staged.path) / "model.sig").write_text("half a signa")
    (Path(staged.path) / ".model.sig.new").write_text("half")
    other = new_key(tmp_path / "other.pem")
    pass_gates(staged, [Signature(str(key))])
    pass_gates(staged, [Signature(str(other))])
    published = publish_staged(staged)
    assert ".model.sig.new" not in os.listdir(published.path)
    assert_verified(published.path, other)


def test_a_release_that_fails_a_check_is_not_signed(
    training: Path, registry: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    with pytest.raises(SmokeFailed):
        run(
            Choice(str(training)),
            registry,
            "tiny",
            gates=[SmokeTest("tests.smoke_functions:says_no"), Signature(str(key))],
        )
    assert list(registry.rglob("model.sig")) == []


def test_keys_that_cannot_sign(training: Path, registry: Path, tmp_path: Path) -> None:
    curve, plain = ec.generate_private_key(ec.SECP256R1()), serialization.NoEncryption()
    keys = {
        "text": b"no key",
        "locked": curve.private_bytes(PEM, PRIVATE, serialization.BestAvailableEncryption(b"secret")),
        "rsa": rsa.generate_private_key(65537, 2048).private_bytes(PEM, PRIVATE, plain),
        "other-curve": ec.generate_private_key(ec.SECP256K1()).private_bytes(PEM, PRIVATE, plain),
        "public": curve.public_key().public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo),
    }
    for name, pem in keys.items():
        (tmp_path / name).write_bytes(pem)
        with pytest.raises(SigningFailed, match=r"P-256, P-384 or P-521"):
            run(Choice(str(training)), registry, "tiny", gates=[Signature(str(tmp_path / name))])
    with pytest.raises(StorageError, match="No such file"):
        run(Choice(str(training)), registry, "tiny", gates=[Signature(str(tmp_path / "missing"))])
    assert not registry.exists()


def test_an_output_that_was_signed_by_hand_is_published_without_that_signature(
    training: Path, registry: Path, tmp_path: Path
) -> None:
    merge(Choice(str(training)).planned(), tmp_path / "out")
    (tmp_path / "out" / "model.sig").write_text("{}")  # covers a manifest that is not the release's
    published = publish(tmp_path / "out", registry, "tiny")
    assert "model.sig" not in os.listdir(published.path)
