"""The guard alone, before an application that says what reached it and as whom."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from ckptcore.dashboard.auth import PERSON, Credentials, Guard
from ckptcore.dashboard.sessions import SESSION, Session, SignedOut, require_session

TOKEN = "correct-horse-battery"
REACHED = "reached as "
COOKIE = "ckpt_session_4280"
ANSWERS: dict[str, Message] = {
    "websocket.connect": {"type": "websocket.accept"},
    "websocket.receive": {"type": "websocket.send", "text": "did it"},
}
SCOPES: list[Scope] = []
"""Of the requests that came through."""


async def within(scope: Scope, receive: Receive, send: Send) -> None:
    """What is guarded: it tells who asks, and a socket gives back what it gets."""
    if scope["type"] == "websocket":
        while (message := await receive())["type"] != "websocket.disconnect":
            await send(ANSWERS[message["type"]])
        return
    SCOPES.append(scope)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": f"{REACHED}{scope[PERSON]}".encode()})


async def talk(guard: Guard, cookie: str, *between: Any) -> list[str]:
    """What a socket sends for a message before and one after ``between``, which happens while it is open."""
    heard, sent = asyncio.Queue[Message](), list[str]()

    async def send(message: Message) -> None:
        sent.append(message["type"])

    scope = {
        "type": "websocket",
        "path": "/ws",
        "headers": [(b"cookie", f"{COOKIE}={cookie}".encode()), (b"host", b"127.0.0.1:4280")],
    }
    socket = asyncio.create_task(guard(scope, heard.get, send))
    for message in ("websocket.connect", "websocket.receive"):
        await heard.put({"type": message})
    while len(sent) < 2:
        await asyncio.sleep(0)
    for happens in between:
        await happens()
    await heard.put({"type": "websocket.receive"})
    await heard.put({"type": "websocket.disconnect"})
    await socket
    return sent


class Visitor:
    """A browser with cookies of its own, which follows nothing by itself."""

    def __init__(self, guard: Guard) -> None:
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://127.0.0.1:4280")

    def get(self, path: str, **more: Any) -> httpx.Response:
        return asyncio.run(self._client.get(path, **more))

    def post(self, path: str, **more: Any) -> httpx.Response:
        return asyncio.run(self._client.post(path, **more))

    async def sign_out(self) -> None:
        assert (await self._client.post("/logout")).status_code == 303


@pytest.fixture
def guard() -> Guard:
    return Guard(within, Credentials(TOKEN, "ada", "correct-horse-too"))


@pytest.fixture
def visitor(guard: Guard) -> Visitor:
    return Visitor(guard)


@pytest.mark.parametrize(
    "path", ["/loginx", "/login/", "/login/x", "/assets/a/b", "/assets/a%2Fb", "/assets/", "/assetsx"]
)
def test_only_the_form_and_its_files_are_open(visitor: Visitor, path: str) -> None:
    assert visitor.get(path).status_code == 401
    assert visitor.get(path, headers={"Accept": "text/html"}).headers["location"].startswith("/login?next=")


def test_the_form_and_its_files_are_open(visitor: Visitor) -> None:
    assert "<form" in visitor.get("/login").text
    assert visitor.get("/assets/dashboard.css").text == REACHED


def signed_in(visitor: Visitor) -> str:
    """The session that the visitor gets for the token."""
    return visitor.post("/login", data={"secret": TOKEN}).cookies[COOKIE]


@pytest.mark.parametrize("other", [b'theme={"dark": true}', b"name=J\xc3\xbcrgen", b"a b=c", b"no-value", b'open="'])
def test_another_applications_cookie_hides_none(guard: Guard, other: bytes) -> None:
    """Cookies are shared by all ports of a host."""
    session = signed_in(Visitor(guard)).encode()
    for cookies in (b"%s; %s=%s" % (other, COOKIE.encode(), session), b"%s=%s; %s" % (COOKIE.encode(), session, other)):
        assert Visitor(guard).get("/", headers={b"Cookie": cookies}).text == REACHED + "token"


def test_dashboards_on_two_ports_of_a_host_do_not_sign_each_other_out(guard: Guard) -> None:
    jar = httpx.Cookies()
    asked = {"transport": httpx.ASGITransport(guard), "cookies": jar}

    async def sign_in(port: int) -> str:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", **asked) as client:  # type: ignore[arg-type]
            return (await client.post("/login", data={"secret": TOKEN})).headers["set-cookie"].partition("=")[0]

    assert [asyncio.run(sign_in(port)) for port in (4280, 4281)] == [COOKIE, "ckpt_session_4281"]


def test_what_is_no_address_is_refused_like_another_sites(visitor: Visitor) -> None:
    for origin in ("http://[", "http://[::1", "[", ""):
        assert visitor.get("/", headers={"Origin": origin}).status_code == 403


@pytest.mark.parametrize("wanted", ["//[", "http://[", "/\\[", "[", "/\t/evil.example", ""])
def test_the_form_leads_to_no_address_that_is_none(visitor: Visitor, wanted: str) -> None:
    assert visitor.get("/login", params={"next": wanted}).status_code == 200
    assert visitor.post("/login", params={"next": wanted}, data={"secret": TOKEN}).headers["location"] == "/"


@pytest.mark.parametrize("given", [b"Basic \xff", b"Basic a", b"Basic /w==", b"Basic", b"Digest x", b"\xff"])
def test_what_is_no_secret_is_refused(visitor: Visitor, given: bytes) -> None:
    assert visitor.get("/", headers={b"Authorization": given}).status_code == 401


@pytest.mark.parametrize(
    "token", ["pferdestärke-größer", "et-la-batterie-voilà", "正しい馬の電池", "bytes-of-old-\udce4-times"]
)
def test_a_token_may_be_more_than_ascii(token: str) -> None:
    visitor = Visitor(Guard(within, Credentials(token)))
    bearer = b"Bearer " + token.encode(errors="surrogateescape")
    assert visitor.get("/", headers={b"Authorization": bearer}).status_code == 200
    assert visitor.get("/", headers={b"Authorization": bearer + b"?"}).status_code == 401


def test_what_cannot_be_encoded_equals_nothing_else() -> None:
    assert Credentials("bytes-of-old-\udce4-times").person("", "bytes-of-old-?-times") == ""


def test_a_link_of_another_site_needs_no_second_sign_in(visitor: Visitor) -> None:
    """The browser keeps the cookie back at first; asked to come again from here, it sends it, to the form's address."""
    from_elsewhere = {"Accept": "text/html", "Sec-Fetch-Site": "cross-site"}
    again = visitor.get("/p/run?x=1", headers=from_elsewhere)
    assert (again.status_code, "url=/login?next=/p/run%3Fx%3D1" in again.text) == (200, True)
    signed_in(visitor)
    answer = visitor.get("/login?next=/p/run%3Fx%3D1")
    assert (answer.status_code, answer.headers.get("location")) == (303, "/p/run?x=1")


def test_a_socket_ends_with_its_session(guard: Guard) -> None:
    visitor = Visitor(guard)
    session = signed_in(visitor)
    opened = ["websocket.accept", "websocket.send"]
    assert asyncio.run(talk(guard, session)) == [*opened, "websocket.send"]
    assert asyncio.run(talk(guard, session, visitor.sign_out)) == [*opened, "websocket.close"]


@pytest.mark.parametrize("how", ["signing out", "signing in as somebody else"])
def test_a_page_acts_for_nobody_once_its_session_is_over(guard: Guard, how: str) -> None:
    """Whichever socket it is reached by: that of the next visitor may be."""
    visitor = Visitor(guard)
    signed_in(visitor)
    visitor.get("/p/run")
    page = SCOPES[-1]
    require_session(page)
    if how == "signing out":
        asyncio.run(visitor.sign_out())
    visitor.post("/login", data={"user": "ada", "secret": "correct-horse-too"})
    assert visitor.get("/p/run").text == REACHED + "ada"
    require_session(SCOPES[-1])
    with pytest.raises(SignedOut):
        require_session(page)


def test_a_session_ends_with_its_time() -> None:
    for session, is_over in ((Session("ada"), False), (Session("ada", time.monotonic()), True)):
        assert session.is_over is is_over
    with pytest.raises(SignedOut):
        require_session({SESSION: Session("ada", time.monotonic())})
