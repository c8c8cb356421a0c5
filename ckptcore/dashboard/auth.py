"""Who may see the page: nobody but this machine, or whoever knows a secret.

Without a secret only requests that call this machine by its own name are answered, so that no page of somebody else's
can reach it by another name. With one, a token or a name and a password are asked for, and a session is a cookie that
no other site can send. A request that says that it comes from another site is refused in any case.
"""

from __future__ import annotations

import base64
import getpass
import hmac
import secrets
import time
from dataclasses import dataclass, field
from html import escape
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from starlette.requests import Request, cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ckptcore.dashboard.sessions import SESSION, Session, while_held
from ckptcore.dashboard.theme import FILES
from ckptcore.errors import InvalidConfig

PERSON = "ckpt_person"
"""Where a request's scope says who asks."""
_COOKIE = "ckpt_session"
_SESSION_SECONDS = 12 * 3600.0
_MOST_SESSIONS = 1000
_LOGIN, _LOGOUT = "/login", "/logout"
_ASSETS = "/assets/"
_MOST_FORM_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a visitor must know: a token, or a name and a password. Neither is ever shown."""

    token: str = field(default="", repr=False)
    user: str = ""
    password: str = field(default="", repr=False)

    @property
    def are_needed(self) -> bool:
        return bool(self.token or self.password)

    def person(self, user: str, secret: str) -> str:
        """Who gives these, "" for nobody. Takes as long whatever is wrong."""
        is_token = _equal(secret, self.token) & bool(self.token)
        is_password = _equal(user, self.user) & _equal(secret, self.password) & bool(self.password)
        return self.user if is_password else "token" if is_token else ""


NOBODY_ASKED = Credentials()


def _equal(given: str, expected: str) -> bool:
    # A question mark for what cannot be encoded would make different secrets equal.
    return hmac.compare_digest(given.encode(errors="surrogatepass"), expected.encode(errors="surrogatepass"))


def is_loopback(host: str) -> bool:
    """Whether the name or address is this machine's own; 127.example.org is somebody else's."""
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def require_safe(host: str, credentials: Credentials) -> None:
    """Refuse to listen where others can reach it while nothing is asked of them. Raises :class:`InvalidConfig`."""
    if not is_loopback(host) and not credentials.are_needed:
        raise InvalidConfig(
            f"the dashboard would be open to everybody who reaches {host}: give it a secret "
            "(--token-file, --password-file or CKPT_DASHBOARD_TOKEN), or let it listen on 127.0.0.1"
        )


def local_person() -> str:
    """Who runs the dashboard; who else could reach it, where nothing is asked for."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "local"


class Guard:
    """The outermost application: lets through who may, and shows the form to the others."""

    def __init__(self, app: ASGIApp, credentials: Credentials) -> None:
        self._app = app
        self._credentials = credentials
        self._sessions: dict[str, Session] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(headers)
        session = None if refusal else self._held(headers)
        if refusal:
            await self._refuse(scope, receive, send, PlainTextResponse(refusal, 403))
        elif scope["type"] == "http" and scope["path"] in (_LOGIN, _LOGOUT) and self._credentials.are_needed:
            await (await self._session(Request(scope, receive)))(scope, receive, send)
        elif session is not None:
            scope[PERSON], scope[SESSION] = session.person, session
            if scope["type"] == "websocket":
                receive, send = while_held(session, receive, send)
            await self._app(scope, receive, send)
        elif scope["type"] == "http" and _is_open(scope["path"]):
            scope[PERSON] = ""
            await self._app(scope, receive, send)
        else:
            await self._refuse(scope, receive, send, self._ask(scope, headers))

    def _refusal(self, headers: dict[str, str]) -> str:
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._credentials.are_needed and not is_loopback(_name_of(host)):
            return "Without a secret this page answers under the names of this machine alone."
        if origin is not None and _host_of(origin) != host.lower():
            return "The request comes from another site."
        return ""

    def _held(self, headers: dict[str, str]) -> Session | None:
        """The session that the request belongs to, None where it may do nothing."""
        if not self._credentials.are_needed:
            return Session(local_person())
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() in ("bearer", "basic"):
            person = self._person(kind.lower(), given)
            return Session(person) if person else None
        kept = self._sessions.get(_session_of(headers))
        return None if kept is None or kept.is_over else kept

    def _person(self, kind: str, given: str) -> str:
        """Who gives this with the request itself, "" for nobody."""
        if kind == "bearer":
            # Headers are read as Latin-1; a secret is UTF-8, as in its file, or whatever bytes a variable holds.
            token = given.strip(" \t").encode("latin-1").decode(errors="surrogateescape")
            return self._credentials.person("", token)
        try:
            user, _, password = base64.b64decode(given, validate=True).decode().partition(":")
        except ValueError:
            return ""
        return self._credentials.person(user, password)

    async def _session(self, request: Request) -> Response:
        """The form, and what it sends."""
        if request.url.path == _LOGOUT and request.method == "POST":
            self._end(_session_of(dict(request.headers)))
            away: Response = RedirectResponse(_LOGIN, 303)
            away.delete_cookie(_cookie_of(dict(request.headers)), path="/")
            return away
        wanted = _own_path(request.query_params.get("next", "/"))
        if request.method != "POST" and self._held(dict(request.headers)):
            return RedirectResponse(wanted, 303)
        if request.method != "POST":
            return _form(wanted, is_wrong=False, with_user=bool(self._credentials.password))
        data = b""
        async for chunk in request.stream():
            data += chunk
            if len(data) > _MOST_FORM_BYTES:
                return PlainTextResponse("The form is too long.", 413)
        form = parse_qs(data.decode(errors="replace"))
        person = self._credentials.person(form.get("user", [""])[0], form.get("secret", [""])[0])
        if not person:
            return _form(wanted, is_wrong=True, with_user=bool(self._credentials.password))
        self._end(_session_of(dict(request.headers)))  # its pages are somebody else's from now on
        self._forget_old()
        session = secrets.token_urlsafe(32)
        self._sessions[session] = Session(person, time.monotonic() + _SESSION_SECONDS)
        answer = RedirectResponse(wanted, 303)
        answer.set_cookie(
            _cookie_of(dict(request.headers)),
            session,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
            path="/",
        )
        return answer

    def _end(self, session: str) -> None:
        if ended := self._sessions.pop(session, None):
            ended.end()

    def _forget_old(self) -> None:
        open_ones = [session for session, held in self._sessions.items() if not held.is_over]
        for session in set(self._sessions) - set(open_ones[-_MOST_SESSIONS:]):
            self._end(session)

    def _ask(self, scope: Scope, headers: dict[str, str]) -> Response:
        """The way to the form for a browser, a plain refusal for everything else."""
        if scope["type"] != "http" or "text/html" not in headers.get("accept", ""):
            return PlainTextResponse("Who are you?", 401, headers={"WWW-Authenticate": 'Basic realm="ckpt"'})
        query = scope.get("query_string", b"").decode("latin-1")
        path = quote(scope["path"]) + (f"?{query}" if query else "")
        if headers.get("sec-fetch-site") == "cross-site" and _session_of(headers) == "":
            # The cookie stays at home when another site's link leads here; asked for once more from here, it comes.
            again = f'<meta http-equiv="refresh" content="0;url={escape(f"{_LOGIN}?next={quote(path)}")}">'
            return HTMLResponse(f"<!doctype html><title>ckpt</title>{again}")
        return RedirectResponse(f"{_LOGIN}?next={quote(path)}", 303)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, answer: Response) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        await answer(scope, receive, send)


def _name_of(host: str) -> str:
    """The host of a Host header without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].lower()


def _host_of(origin: str) -> str | None:
    """The host of an Origin header with its port; None where it is no address."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _cookie_of(headers: dict[str, Any]) -> str:
    """The name of the cookie at the address that was asked for: a host's cookies are those of all its ports."""
    port = headers.get("host", "").rpartition("]")[2].partition(":")[2]
    return f"{_COOKIE}_{port}" if port.isascii() and port.isdecimal() else _COOKIE


def _session_of(headers: dict[str, Any]) -> str:
    # Cookies are shared by all ports of a host, and SimpleCookie gives up at the first odd one of another application.
    return cookie_parser(headers.get("cookie", "")).get(_cookie_of(headers), "")


def _own_path(wanted: str) -> str:
    """A path of this site, whatever was asked for."""
    is_own = wanted.startswith("/") and not wanted.startswith(("//", "/\\")) and wanted.isprintable()
    return wanted if is_own else "/"


def _form(wanted: str, *, is_wrong: bool, with_user: bool) -> HTMLResponse:
    from ckptcore.dashboard.theme import stylesheet_link

    user = '<label>Name<input name="user" autocomplete="username" autofocus></label>' if with_user else ""
    wrong = '<p class="wrong" role="alert">That is not it. Try again.</p>' if is_wrong else ""
    focus = "" if with_user else " autofocus"
    label = "Password or token" if with_user else "Token"
    page = f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>ckpt: sign in</title>
<meta name="viewport" content="width=device-width, initial-scale=1">{stylesheet_link()}</head>
<body class="login"><form method="post" action="{_LOGIN}?next={escape(quote(wanted))}"><h1>ckpt</h1>{wrong}{user}
<label>{label}<input name="secret" type="password" autocomplete="current-password"{focus}></label>
<button>Sign in</button></form></body></html>"""
    return HTMLResponse(page, 401 if is_wrong else 200, headers={"Cache-Control": "no-store"})


def _is_open(path: str) -> bool:
    """Whether strangers get it: the files that the form itself needs, and no path that merely begins like them."""
    return path.startswith(_ASSETS) and path.removeprefix(_ASSETS) in FILES
