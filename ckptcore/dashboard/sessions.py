"""How long somebody who was let in may do something, and what ends with that: pages, sockets, and what they ask for.

Who is let in is ``auth``'s.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.types import Message, Receive, Send

from ckptcore.errors import CheckpointError

SESSION = "ckpt_session"
"""Where a request's scope keeps it."""


class SignedOut(CheckpointError, PermissionError):
    """The page was opened in a session that is over."""


@dataclass(slots=True)
class Session:
    """As whom somebody was let in, and until when. All that was let in with it shares it, and so sees it end."""

    person: str
    ends_at: float = math.inf
    """By the monotonic clock; what carries a secret with each request has no end."""

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.ends_at

    def end(self) -> None:
        self.ends_at = -math.inf


def require_session(scope: Mapping[str, Any]) -> None:
    """Refuse to act for a page that this request got, once its session is over. Raises :class:`SignedOut`.

    A page outlives its socket for a while, and the next one may come from whoever signed in after.
    """
    session = scope.get(SESSION)
    if session is None or session.is_over:
        raise SignedOut("this page's session is over: load it again, and sign in")


def while_held(session: Session, receive: Receive, send: Send) -> tuple[Receive, Send]:
    """A socket's two ways, closed with the session: whatever comes later, either way, is lost."""

    async def take() -> Message:
        message = await receive()
        if not session.is_over or message["type"] == "websocket.disconnect":
            return message
        await send({"type": "websocket.close", "code": 1008})
        return {"type": "websocket.disconnect", "code": 1008}

    async def give(message: Message) -> None:
        if not session.is_over:
            await send(message)

    return take, give
