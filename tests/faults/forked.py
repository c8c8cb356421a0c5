"""``ckpt`` in a child that has imported everything and waits for a word to begin: the server side.

A fork costs a hundredth of a start of Python, and a tracer that is attached before the word sees the command's own
calls and no import. Requests and replies are JSON lines; ``commands`` speaks with it.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import resource
import select
import sys
import traceback
from typing import Any

# Paddle takes seconds to import, a server has threads, and no command that is tried needs either; __main__ is the
# command itself.
_LEFT_OUT = ("ckptcore.paddle", "ckptcore.paddle_loading", "ckptcore.paddle_saving", "ckptcore.__main__")
CRASHED = 70
"""The exit status of a command that let an exception escape."""


def _import_everything() -> None:
    import ckptcore

    for module in pkgutil.walk_packages(ckptcore.__path__, "ckptcore."):
        if module.name not in _LEFT_OUT and not module.name.startswith("ckptcore.dashboard."):
            importlib.import_module(module.name)


def _become(request: dict[str, Any], word: int) -> None:
    """Run the command in this child, once the other end of ``word`` is closed; does not return."""
    status = CRASHED
    try:
        output = os.open(request["output"], os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        for standard in (1, 2):
            os.dup2(output, standard)
        os.chdir("/")
        os.umask(request["umask"])
        if request["file_size"]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_size"], request["file_size"]))
        if request["uid"]:
            os.setgroups([])
            os.setgid(request["uid"])
            os.setuid(request["uid"])
        select.select([word], [], [])  # its writer closes it
        from ckptcore.cli import main

        sys.argv = ["ckpt", *request["arguments"]]
        main()
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:  # noqa: BLE001 - whatever it is, it is the finding
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def serve() -> None:
    _import_everything()
    waiting: dict[int, int] = {}
    _reply("ready")
    for line in sys.stdin:
        request = json.loads(line)
        reply: int = 0
        match request["do"]:
            case "fork":
                word, say = os.pipe()
                reply = os.fork()
                if reply == 0:
                    for other in (say, *waiting.values()):
                        os.close(other)
                    _become(request, word)
                os.close(word)
                waiting[reply] = say
            case "begin":
                os.close(waiting.pop(request["pid"]))
            case "wait":
                reply = os.waitstatus_to_exitcode(os.waitpid(request["pid"], 0)[1])
        _reply(reply)


def _reply(document: object) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    serve()
