"""What must be there before the dashboard starts: its extra, and the secrets, which never stand on a command line."""

from __future__ import annotations

import os
import socket
from importlib.util import find_spec
from pathlib import Path

from ckptcore.dashboard.auth import Credentials
from ckptcore.errors import Busy, DashboardMissing, InvalidConfig
from ckptcore.pipeline import DashboardSettings
from ckptcore.storage.regular_files import read_document

TOKEN_VARIABLE = "CKPT_DASHBOARD_TOKEN"  # noqa: S105 - a name, no secret
_SHORTEST = 12
_MOST_BYTES = 4096


def is_installed() -> bool:
    return find_spec("nicegui") is not None


def require_installed() -> None:
    """Raises :class:`DashboardMissing` where the extra is not installed."""
    if not is_installed():
        raise DashboardMissing("the dashboard needs NiceGUI: pip install 'ckptcore[dashboard]'")


def require_free(host: str, port: int) -> None:
    """Raises :class:`Busy` where nothing can listen there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise Busy(
                f"{host}:{port} cannot be listened on: {error.strerror or error}; name another --port"
            ) from error


def credentials_from(token_file: Path | None, password_file: Path | None) -> Credentials:
    """The secrets of the files and of the environment. Raises :class:`InvalidConfig` for one that is soon guessed."""
    token = os.environ.pop(TOKEN_VARIABLE, "") if token_file is None else _secret_in(token_file)
    user, password = "", ""
    if password_file is not None:
        user, colon, password = _secret_in(password_file).partition(":")
        if not colon or not user:
            raise InvalidConfig(f"{password_file}: expected NAME:PASSWORD")
    for secret, what in ((token, str(token_file or TOKEN_VARIABLE)), (password, str(password_file))):
        if secret and len(secret) < _SHORTEST:
            raise InvalidConfig(f"{what}: the secret is too short: expected at least {_SHORTEST} characters")
    if (token_file is not None and not token) or (password_file is not None and not password):
        raise InvalidConfig(f"{token_file or password_file}: holds no secret")
    return Credentials(token, user, password)


def credentials_of(settings: DashboardSettings) -> Credentials:
    """Those that a pipeline's file names, and the environment's."""
    files = (settings.token_file, settings.password_file)
    return credentials_from(*(None if file is None else Path(file) for file in files))


def _secret_in(path: Path) -> str:
    """The first line of the file."""
    try:
        return read_document(path, _MOST_BYTES).decode().split("\n", 1)[0].strip()
    except UnicodeDecodeError as error:
        raise InvalidConfig(f"{path}: is no text") from error
