"""What every answer tells the browser to refuse: other hosts, frames, and scripts that this process did not write.

NiceGUI needs inline scripts and ``eval``; each of its scripts gets a nonce of the answer, so that a script or a handler
that a name would smuggle into a page is not run even where it were not escaped.
"""

from __future__ import annotations

import secrets

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_ALWAYS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}


def policy(nonce: str) -> str:
    """The content security policy of a page whose scripts carry the nonce."""
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src 'self' 'nonce-{nonce}' 'unsafe-eval'",
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data:",
            "font-src 'self'",
            "connect-src 'self'",
            "form-action 'self'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
        ]
    )


class SecurityHeaders:
    """Adds the headers to every answer, and the nonce to every script of a page."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        nonce, head, body = secrets.token_urlsafe(16), dict[str, Message](), bytearray()

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _ALWAYS.items():
                    headers[name] = value
                headers["Content-Security-Policy"] = policy(nonce)
                if headers.get("content-type", "").startswith("text/html"):
                    head["start"] = message  # its length is known only when the body is
                    return
            elif message["type"] == "http.response.body" and "start" in head:
                body.extend(message.get("body", b""))
                if message.get("more_body"):
                    return
                # Nothing but NiceGUI's template and our own files write this tag: all text is escaped before.
                page = bytes(body).replace(b"<script", f'<script nonce="{nonce}"'.encode())
                start = head.pop("start")
                MutableHeaders(scope=start)["content-length"] = str(len(page))
                await send(start)
                message = {**message, "body": page}
            await send(message)

        await self._app(scope, receive, guarded)
