"""Sign a release with OpenSSF's model-signing, so that its own command verifies it.

The signature, ``model.sig``, covers every file of the release, the manifest included; the manifest does not list it,
and the identity of the release does not depend on it. Imports model-signing only where something is to be signed.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

from ckptcore.errors import SigningFailed, SigningMissing
from ckptcore.rules.json_documents import parse_json
from ckptcore.rules.manifest import SIGNATURE_NAME
from ckptcore.storage.commit import remove_tree, sync_directory, write_file
from ckptcore.storage.refusals import reported
from ckptcore.storage.regular_files import read_document

_MISSING = "signing needs model-signing, which cannot be imported ({error}): pip install 'ckptcore[sign]'"


def require_signer(private_key: str | os.PathLike[str]) -> None:
    """Raise :class:`SigningMissing` or :class:`SigningFailed` where nothing can be signed with that key."""
    _signer(private_key)


def sign(directory: Path, private_key: str | os.PathLike[str], *, anew: bool) -> bool:
    """Put a signature of the release in ``directory`` into it, in one rename; whether one was made.

    One that the same key made stays as it is, unless ``anew``. Raises :class:`SigningFailed` where another key made it,
    since what is visible does not change, and :class:`SigningMissing`, :class:`StorageError`.
    """
    signer = _signer(private_key)
    signature = directory / SIGNATURE_NAME
    if not anew and signature.exists():
        if _maker(signature) != _hint(private_key):
            raise SigningFailed(f"{signature}: was made with another key than {os.fspath(private_key)}, and stays")
        return False
    aside = directory / f".{SIGNATURE_NAME}.new"
    remove_tree(aside)
    write_file(aside, _signature(signer, directory))
    with reported("cannot put a signature at", signature):
        os.replace(aside, signature)
    sync_directory(directory)
    return True


def _signer(private_key: str | os.PathLike[str]) -> Any:
    """The configuration of model-signing that signs with the key (its API of 1.1, stable since 1.0)."""
    try:
        from model_signing import signing
    except ImportError as error:
        raise SigningMissing(_MISSING.format(error=error)) from error
    with reported("cannot read", private_key):
        try:
            return signing.Config().use_elliptic_key_signer(private_key=private_key)
        except OSError:
            raise
        except Exception as error:  # whatever its parts raise, an AttributeError for a key of another kind included
            expected = "an unencrypted PEM of a private key on the curve P-256, P-384 or P-521"
            raise SigningFailed(f"{os.fspath(private_key)}: expected {expected}, found {error}") from error


def _signature(signer: Any, directory: Path) -> bytes:
    from model_signing import hashing

    with reported("cannot sign", directory), tempfile.TemporaryDirectory() as scratch:
        # Names with a dot are the registry's own notes, and go before the release becomes visible.
        ignored = [SIGNATURE_NAME, *sorted(name for name in os.listdir(directory) if name.startswith("."))]
        config = signer.set_hashing_config(hashing.Config().set_ignored_paths(paths=ignored))
        made = Path(scratch, SIGNATURE_NAME)
        config.sign(directory, made)
        return made.read_bytes()


def _hint(private_key: str | os.PathLike[str]) -> str:
    """How a signature names the key that made it: the SHA-256 of the public key's PEM (model-signing 1.1)."""
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(Path(private_key).read_bytes(), None).public_key()
    pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(pem).hexdigest()


def _maker(signature: Path) -> str:
    """The hint of the key that made a signature; "" where it does not say."""
    data = read_document(signature)
    try:
        return str(parse_json(data)["verificationMaterial"]["publicKey"]["hint"])
    except (ValueError, LookupError, TypeError):
        return ""
