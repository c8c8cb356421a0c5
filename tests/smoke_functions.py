"""What users' functions do to a release, and to the process that calls them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np


def good(path: str) -> None:
    assert path == os.environ["CKPT_RELEASE_PATH"]
    assert Path(path, "manifest.json").is_file()


def says_yes(path: str) -> bool:
    return True


def refuses_gated(path: str) -> bool:
    """Refuses the releases of one name."""
    if Path(path).parents[1].name == "gated":
        print("perplexity is 1e9")
        return False
    return True


def says_no(path: str) -> bool:
    print("perplexity is 1e9")
    return False


def says_no_as_numpy_does(path: str) -> np.bool_:
    return np.False_


def raises(path: str) -> None:
    for number in range(100):
        print(f"looked at layer {number}")
    raise ValueError("the logits are not finite")


def leaves(path: str) -> None:
    sys.exit(7)


def crashes(path: str) -> None:
    os.abort()


def hangs(path: str) -> None:
    """Starts a child that would hang as well, and says who both are."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(f"pids {os.getpid()} {child.pid}")
    time.sleep(600)


def leaves_a_child_behind(path: str) -> None:
    """The child holds the output open for longer than any test waits."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(os.environ["CHILD_PID"]).write_text(str(child.pid))


def floods(path: str) -> None:
    """A line that never ends, 32 MiB of it."""
    for _ in range(32):
        sys.stdout.write("x" * (1 << 20))
    raise SystemExit(1)


def prints_bytes(path: str) -> None:
    sys.stdout.buffer.write(b"\xff\xfe no text\n\x1b[31mred\n")
    sys.exit(1)


def writes(path: str) -> None:
    Path(path, "cache.bin").write_bytes(b"x")


def changes(path: str) -> None:
    shard = Path(path, "model.safetensors")
    shard.write_bytes(shard.read_bytes()[:-1] + b"\0")


def kills_its_caller(path: str) -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)


def sees_one_device(path: str) -> bool:
    return os.environ["CUDA_VISIBLE_DEVICES"] in ("0", "1")


def needs_the_alias_unmoved(path: str) -> None:
    """The release is not what the alias names while it is being tried."""
    shelf = Path(path).parents[1]
    print(sorted(entry.name for entry in shelf.iterdir()))
    assert not (shelf / "production").exists()
