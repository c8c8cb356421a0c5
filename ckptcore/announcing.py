"""Tell the pipeline that training has written a version: a durable mark beside its files, then an event by HTTP.

For training code. This one file needs the standard library only and runs alone on Python 3.9 and later: import it
from the package, or copy it beside the training script. ``announce`` never raises, and waits 30 ms for the mark and
no longer: file system and network are a background thread's. ``python announce.py PATH ID`` does the same from a shell.

The mark is ``{unique_id}.announced``, and what it holds is the body of the request that sends the event, a JSON list of
one event, so whoever finds it can send it again as it is. Announcing is a hint, and says that one rank has
finished: other ranks may be writing still, which whoever receives the event must check. Watching, verifying and the
names of checkpoints as such are left to the rest of the package; the names needed here are repeated from
``rules.layout``, since this file stands alone.

The event's id is a UUID made from the version's path and unique_id, and from name, size and time of the files that the
announcer vouches for: its own rank's file, or, where it is no rank, all files of the unique_id. A mark is current as
long as this gives the same id again; so of many ranks that announce one save the first wins, and a save that
overwrites the same unique_id in place is announced anew. (No file is the same for all ranks: metadata is kept as
it was when Paddle 3.2 and later overwrite a save, and the files of other ranks may be half written.)
"""

from __future__ import annotations

import argparse
import atexit
import base64
import errno
import fcntl
import hashlib
import json
import logging
import operator
import os
import re
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

EVENT = "ckpt.version.written"
MARK_SUFFIX = ".announced"

_COMPONENTS = ("model_state", "optimizer_state", "master_weight", "ema_state", "dist_ckpt")
_STEP = re.compile("checkpoint-(0|[1-9][0-9]{0,17})")
_RANK_ENV = "PADDLE_TRAINER_ID"
_WORLD_SIZE_ENV = "PADDLE_TRAINERS_NUM"

# What the trainer may lose in one call is 50 ms; on a busy machine the thread's start and end take the rest.
_PATIENCE_S = 0.03
_EXIT_PATIENCE_S = 2.0
_REQUEST_TIMEOUT_S = 5.0
# A server that is being restarted is back within 20 s; whatever takes longer is what the mark is for.
_PAUSES_S = (1.0, 4.0, 16.0)
_LOCK_PATIENCE_S = 10.0
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)

_OF_THE_EVENT = (400, 413, 422)
"""What a server answers whose fault with the event is the event's own, whoever sends it and whenever."""

_log = logging.getLogger("ckptcore.announcing")
_unfinished: set[threading.Thread] = set()


class Refused(OSError):
    """The server answered, and will answer the same again: wrong credentials, or a server that takes no events."""


class Unacceptable(Refused):
    """The server takes events, and not this one: it cannot be read, or is too large."""


class Mark(NamedTuple):
    """The event of a version as its mark holds it, and whether this call wrote it."""

    event: dict[str, Any]
    is_new: bool


def announce(path: str | os.PathLike[str], unique_id: int, *, url: str | None = None, rank: int | None = None) -> bool:
    """Announce the version whose files ``{rank}_{unique_id}.distcp`` lie in ``path``, this rank's file being written.

    Call it on one rank or on all; each save is announced once. ``url`` is Prefect's API (default: the environment's
    ``PREFECT_API_URL``; without one there is only the mark, which a watcher finds), ``rank`` this process's (default:
    ``PADDLE_TRAINER_ID``). True where the mark is on disk already; False where the disk is slow, and the
    work goes on in the background, or where it failed. Whatever fails is logged as a warning and never raised.
    """
    try:
        work = _Work(os.path.abspath(os.fspath(path)), operator.index(unique_id), _url(url), _rank(rank))
        work.start()
        return work.marked.wait(_PATIENCE_S) and work.is_marked
    except Exception:  # noqa: BLE001 - a trainer must not end because an announcement failed
        _log.warning("version %s in %s is not announced", unique_id, path, exc_info=True)
        return False


def flush(timeout_s: float = _EXIT_PATIENCE_S) -> bool:
    """Wait for announcements under way; whether all are done. Runs by itself when the interpreter exits."""
    end = time.monotonic() + timeout_s
    for work in tuple(_unfinished):
        work.join(max(0.0, end - time.monotonic()))
        if work.is_alive():
            _log.warning("%s is not finished", work.name)
    return not any(work.is_alive() for work in tuple(_unfinished))


atexit.register(flush)


def write_mark(path: str, unique_id: int, rank: int | None = None) -> Mark:
    """The version's mark, written unless the one that is there is current. On disk when this returns.

    Raises OSError where the directory or every file of the unique_id is missing, or the mark cannot be written.
    """
    directory = os.path.realpath(path)
    # Without the lock first, or a thousand ranks would queue for it only to find the mark of the quickest.
    if (announced := _announced(directory, unique_id)) is not None:
        return Mark(announced, is_new=False)
    event = event_of(directory, unique_id, rank)
    with _locked(_lock_path(directory, unique_id)):
        if (announced := _announced(directory, unique_id)) is not None:
            return Mark(announced, is_new=False)
        _replace(_mark_path(directory, unique_id), json.dumps([event], indent=1).encode())
    return Mark(event, is_new=True)


def current_event(path: str, unique_id: int) -> dict[str, Any] | None:
    """The event in the version's mark; None where there is no mark, or it tells of another place or an earlier save."""
    directory = os.path.realpath(path)
    try:
        with open(_mark_path(directory, unique_id), "rb") as file:
            (event,) = json.load(file)
        rank = event["payload"]["rank"]
        if rank is not None:
            rank = operator.index(rank)
        return event if event_of(directory, unique_id, rank)["id"] == event["id"] else None
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        RecursionError,
    ):  # no mark, a damaged one, or files that are gone
        return None


def send(event: dict[str, Any], url: str) -> None:
    """POST the event to ``url``, Prefect's API, once; raises as :func:`post` does. Sending an event again is harmless:
    its id is the same."""
    post(url, "/events", [event])


def post(url: str, path: str, document: Any) -> bytes:
    """The answer to a document that is sent, as JSON, to a path of ``url``, Prefect's API.

    Raises OSError where no answer comes, and :class:`Refused` where another try would be refused as well.
    """
    address = url.rstrip("/") + path
    headers = {"Content-Type": "application/json", **_credentials()}
    try:
        if not address.startswith(("http://", "https://")):
            raise Refused(f"{url!r} is no http:// or https:// address")
        request = urllib.request.Request(address, json.dumps(document).encode(), headers)  # noqa: S310 - looked at above
        with _opener.open(request, timeout=_REQUEST_TIMEOUT_S) as answer:
            content: bytes = answer.read()
            return content
    except urllib.error.HTTPError as error:
        with error:
            text = f"{address}: HTTP {error.code}: {error.read(300).decode(errors='replace')}"
        if error.code in _OF_THE_EVENT:
            raise Unacceptable(text) from error
        raise (OSError if error.code >= 500 or error.code in (408, 429) else Refused)(text) from error
    except OSError:
        raise
    except Exception as error:  # an answer that is no HTTP, an address that cannot be parsed
        raise Refused(f"{address}: {error!r}") from error


class _StayHere(urllib.request.HTTPRedirectHandler):
    """A redirected POST would arrive as a GET, and carry the credentials to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


_opener = urllib.request.build_opener(_StayHere)


class _Work(threading.Thread):
    """One announcement, from the files' stamps to the server's answer."""

    def __init__(self, path: str, unique_id: int, url: str | None, rank: int | None) -> None:
        super().__init__(name=f"announcing version {unique_id} in {path}", daemon=True)
        self._version = (path, unique_id, rank)
        self._url = url
        self.is_marked = False
        self.marked = threading.Event()
        """Set when the mark is written, found or given up."""

    def start(self) -> None:
        _unfinished.add(self)
        super().start()

    def run(self) -> None:
        try:
            event = self._mark()
            self.marked.set()
            if event is not None:
                self._send(event)
        except Exception:  # noqa: BLE001 - nobody waits for this thread to fail
            _log.warning("%s failed", self.name, exc_info=True)
        finally:
            self.marked.set()
            _unfinished.discard(self)

    def _mark(self) -> dict[str, Any] | None:
        """Write or find the mark. The event, where it is for this process to send."""
        path, unique_id, rank = self._version
        try:
            mark = write_mark(path, unique_id, rank)
        except OSError as error:
            _log.warning("%s: no mark is written: %s", self.name, error)
            # Without a mark ranks cannot know of each other, and one event from each of a thousand is worse than none.
            return event_of(os.path.realpath(path), unique_id, rank) if rank in (None, 0) else None
        self.is_marked = True
        # The announcer that calls again may do so because its event was lost; other ranks have nothing to add.
        return mark.event if mark.is_new or mark.event["payload"]["rank"] == rank else None

    def _send(self, event: dict[str, Any]) -> None:
        if self._url is None:
            _log.warning("%s: PREFECT_API_URL is not set: there is only the mark, for a watcher to find", self.name)
            return
        for pause_s in (*_PAUSES_S, None):
            try:
                send(event, self._url)
                return
            except OSError as error:
                if pause_s is None or isinstance(error, Refused):
                    _log.warning("%s: the event is not sent: %s", self.name, error)
                    return
                time.sleep(pause_s)


def _announced(directory: str, unique_id: int) -> dict[str, Any] | None:
    """The current event, unless its rank is beyond those of this training: their files are left by an earlier one, and
    stay as they are when fewer ranks overwrite the save."""
    event = current_event(directory, unique_id)
    world_size = os.environ.get(_WORLD_SIZE_ENV, "")
    if event is None or not world_size.isdecimal() or (event["payload"]["rank"] or 0) < int(world_size):
        return event
    return None


def event_of(directory: str, unique_id: int, rank: int | None) -> dict[str, Any]:
    """The event as Prefect's API takes it. ``payload.stamp`` is of that rank's file, or of all where it has none."""
    names = _names(directory, unique_id)
    own = [name for name in names if rank is not None and name.startswith(f"{rank}_")]
    stamp = _stamp(directory, own or names)
    step_directory, component = directory, None
    if os.path.basename(directory) in _COMPONENTS:
        step_directory, component = os.path.split(directory)
    is_step = _STEP.fullmatch(os.path.basename(step_directory))
    step = int(is_step[1]) if is_step else None
    run = os.path.dirname(step_directory) if is_step else step_directory
    resource_id = f"ckpt.version.{directory}/{unique_id}"
    resource = {
        "prefect.resource.id": resource_id,
        "prefect.resource.name": f"version {unique_id}" + ("" if step is None else f" of step {step}"),
        "ckpt.run": run,
    }
    if component is not None:
        resource["ckpt.component"] = component
    return {
        "id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{resource_id}#{stamp}")),
        "occurred": _now(),
        "event": EVENT,
        "resource": resource,
        "payload": {
            "path": directory,
            "run": run,
            "step": step,
            "component": component,
            "unique_id": unique_id,
            "rank": rank if own else None,
            "stamp": stamp,
        },
    }


def _names(directory: str, unique_id: int) -> list[str]:
    """Metadata and rank files of the unique_id, sorted."""
    name = re.compile(rf"(0|[1-9][0-9]*)_{unique_id}\.(distcp|safetensors)|{unique_id}\.metadata")
    found = sorted(filter(name.fullmatch, os.listdir(directory)))
    if not found:
        raise FileNotFoundError(errno.ENOENT, f"no file of unique_id {unique_id}", directory)
    return found


def _stamp(directory: str, names: Sequence[str]) -> str:
    """SHA-256 over name, size and time of each file; ``rules.fingerprint`` gives the same for the same files."""
    record = hashlib.sha256()
    for name in names:
        # Opened, because NFS may answer a stat from its cache, and asks the server on every open.
        descriptor = os.open(os.path.join(directory, name), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        record.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return record.hexdigest()


def _mark_path(directory: str, unique_id: int) -> str:
    return os.path.join(directory, f"{unique_id}{MARK_SUFFIX}")


def _lock_path(directory: str, unique_id: int) -> str:
    return os.path.join(directory, f".{unique_id}{MARK_SUFFIX}.lock")


@contextmanager
def _locked(path: str) -> Iterator[None]:
    """Only one process looks at a mark and replaces it. Where the file system has no locks, it goes without: then two
    ranks may both announce, with different ids."""
    end = time.monotonic() + _LOCK_PATIENCE_S
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                break
        except BlockingIOError:
            pass  # another has it
        except OSError as error:
            if error.errno in _NO_LOCKS:
                break
            os.close(descriptor)
            raise
        os.close(descriptor)
        if time.monotonic() > end:
            raise TimeoutError(errno.ETIMEDOUT, "another process holds the lock", path)
        time.sleep(0.01)
    try:
        yield
    finally:
        try:
            os.unlink(path)  # while it is held: whoever waits for it sees that it is no longer the file at its path
        except OSError:
            pass
        os.close(descriptor)


def _is_at(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _replace(path: str, data: bytes) -> None:
    """Put ``data`` at ``path``, whole and on disk, or leave what is there."""
    directory, name = os.path.split(path)
    staged = os.path.join(directory, f".{name}.{uuid.uuid4().hex}")
    try:
        with open(staged, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(staged, path)
    except BaseException:
        try:
            os.unlink(staged)
        except OSError:
            pass
        raise
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _now() -> str:
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{nanoseconds // 1000:06d}+00:00"


def _url(url: str | None) -> str | None:
    return url or os.environ.get("PREFECT_API_URL") or None


def _rank(rank: int | None) -> int | None:
    if rank is not None:
        return operator.index(rank)
    named = os.environ.get(_RANK_ENV, "")
    return int(named) if named.isdecimal() else None


def _credentials() -> dict[str, str]:
    """As Prefect's own client has it: the server's user and password before a key."""
    login = os.environ.get("PREFECT_API_AUTH_STRING")
    if login:
        return {"Authorization": "Basic " + base64.b64encode(login.encode()).decode()}
    key = os.environ.get("PREFECT_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}


def main(arguments: Sequence[str] | None = None) -> int:
    """``python announce.py PATH ID``: as ``announce``, but in the foreground and with one try.

    Prints the event's id. The exit status is 1 where the mark or the event failed.
    """
    parser = argparse.ArgumentParser(description="Announce a version of a Paddle distributed checkpoint.")
    parser.add_argument("path", metavar="PATH", help="the directory that holds {rank}_{unique_id}.distcp")
    parser.add_argument("unique_id", metavar="ID", type=int, help="Paddle's unique_id")
    parser.add_argument("--url", help="Prefect's API; default: PREFECT_API_URL; without one there is only the mark")
    asked = parser.parse_args(arguments)
    url = _url(asked.url)
    try:
        event = write_mark(asked.path, asked.unique_id, _rank(None)).event
        if url is not None:
            send(event, url)
    except OSError as error:
        sys.stderr.write(f"not announced: {error}\n")
        return 1
    sys.stdout.write(f"{event['id']}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
