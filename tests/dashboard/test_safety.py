"""Who may see the page, asked of a running one: names, origins, secrets, sessions, and what is served at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.builders import SavedCheckpoint, write_trainer_run
from tests.command import assert_refused, ckpt_process
from tests.dashboard.serving import Served, eyes, serving

pytestmark = pytest.mark.browser
TOKEN = "correct-horse-battery"
SOCKET = "/_nicegui_ws/socket.io/?EIO=4&transport=polling"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("safe")
    write_trainer_run(directory / "run", {100: SavedCheckpoint().tensor("w", [1.0])})
    (directory / "secret.txt").write_text("a secret")
    return directory


@pytest.fixture(scope="module")
def local(place: Path) -> Iterator[Served]:
    with serving(place, "--source", place / "run") as served:
        yield served


@pytest.fixture(scope="module")
def guarded(place: Path) -> Iterator[Served]:
    with serving(place, "--source", place / "run", secret=TOKEN) as served:
        yield served


def test_it_answers_under_its_own_names_alone(local: Served) -> None:
    for path in ("/", SOCKET, "/assets/dashboard.css"):
        assert httpx.get(f"{local.url}{path}").status_code == 200
        for host in ("127.0.0.7:80", "localhost", "[::1]:4280"):
            assert httpx.get(f"{local.url}{path}", headers={"Host": host}).status_code == 200
        for host in ("rebound.example", "127.rebound.example", "127.0.0.1.rebound.example", "localhost.example", ""):
            assert httpx.get(f"{local.url}{path}", headers={"Host": host}).status_code == 403


def test_other_sites_are_refused_on_every_way(local: Served) -> None:
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
        headers = {"Origin": origin}
        assert httpx.get(f"{local.url}{SOCKET}", headers=headers).status_code == 403
        assert httpx.post(f"{local.url}{SOCKET}", headers=headers).status_code == 403
        assert httpx.get(f"{local.url}/", headers=headers).status_code == 403


def test_another_site_cannot_open_the_socket(local: Served, browser: Browser) -> None:
    """From the same browser, a page of another origin: the socket is closed before it is open."""
    with eyes(browser, local.url) as seen:
        page = seen.context.new_page()
        page.route("http://other.example/", lambda route: route.fulfill(body="<p>other", content_type="text/html"))
        page.goto("http://other.example/")
        url = local.url.replace("http", "ws") + "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
        opened = page.evaluate(
            "url => new Promise(done => { const s = new WebSocket(url); s.onopen = () => done('open');"
            " s.onerror = () => done('refused'); })",
            url,
        )
        assert opened == "refused"


def test_every_answer_forbids_what_it_does_not_need(local: Served) -> None:
    answer = httpx.get(local.url)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "'unsafe-inline'" not in policy.split("style-src")[0]
    assert answer.headers["x-content-type-options"] == "nosniff"
    nonces = {policy.split("'nonce-")[1].split("'")[0], httpx.get(local.url).headers["content-security-policy"]}
    assert len(nonces) == 2
    scripts = answer.text.count("<script")
    assert scripts == answer.text.count(f'<script nonce="{policy.split("nonce-")[1].split(chr(39))[0]}"')


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../secret.txt",
        "/assets/%2e%2e%2fsecret.txt",
        "/secret.txt",
        "/r/run/..%2f..%2fsecret.txt",
        "/docs",
        "/openapi.json",
    ],
)
def test_nothing_else_is_served(local: Served, path: str) -> None:
    answer = httpx.get(f"{local.url}{path}")
    assert "a secret" not in answer.text
    assert "openapi" not in answer.text.lower() or answer.status_code == 404


@pytest.mark.parametrize("path", ["/loginx", "/login/x", "/assets/", "/assets/x", "/assets/a/dashboard.css"])
def test_what_begins_like_the_form_is_no_way_in(guarded: Served, path: str) -> None:
    assert httpx.get(f"{guarded.url}{path}").status_code == 401


def test_without_the_secret_there_is_only_the_form(guarded: Served) -> None:
    assert httpx.get(guarded.url).status_code == 401
    assert httpx.get(f"{guarded.url}{SOCKET}").status_code == 401
    asked = httpx.get(f"{guarded.url}/p/run?x=1", headers={"Accept": "text/html"})
    assert (asked.status_code, asked.headers["location"]) == (303, "/login?next=/p/run%3Fx%3D1")
    for wrong in (b"Bearer nonsense", b"Basic !!!", b"Bearer", b"Basic OnRva2Vu", b"Bearer \xff"):
        assert httpx.get(guarded.url, headers={b"Authorization": wrong}).status_code == 401
    assert httpx.get(guarded.url, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


@pytest.mark.parametrize(
    "wanted", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)"]
)
def test_the_form_leads_nowhere_else(guarded: Served, wanted: str) -> None:
    answer = httpx.post(f"{guarded.url}/login", params={"next": wanted}, data={"secret": TOKEN})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie


def test_signing_in_and_out(guarded: Served, browser: Browser) -> None:
    with eyes(browser, guarded.url) as seen:
        page = seen.page()
        page.goto(f"{guarded.url}/p/run")
        page.get_by_label("Token").fill("something-else-entirely")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_be_visible()
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Sign in").click()
        expect(page).to_have_url(f"{guarded.url}/p/run")
        expect(page.locator("h1")).to_contain_text("run", timeout=60_000)
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Token")).to_be_visible()
        page.goto(guarded.url)
        expect(page.get_by_label("Token")).to_be_visible()
        seen.errors = [error for error in seen.errors if "401" not in error]  # the browser tells of the first try
        seen.assert_calm()


def test_basic_auth_says_who(place: Path) -> None:
    (place / "password").write_text("ada:correct-horse-battery\n")
    with serving(place, "--source", place / "run", "--password-file", place / "password") as served:
        assert httpx.get(served.url, auth=("ada", "wrong-horse-battery")).status_code == 401
        assert httpx.get(served.url, auth=("bob", "correct-horse-battery")).status_code == 401
        answer = httpx.get(served.url, auth=("ada", "correct-horse-battery"))
        assert answer.status_code == 200
        assert "ada" in answer.text
        assert "correct-horse" not in answer.text


def test_it_does_not_open_itself_to_others(place: Path) -> None:
    refused = ckpt_process("dashboard", "--source", place / "run", "--host", "0.0.0.0", cwd=place)
    assert_refused(refused, "would be open to everybody")


@pytest.mark.parametrize(("content", "why"), [("short", "too short"), ("", "holds no secret")])
def test_a_weak_secret_is_refused(place: Path, content: str, why: str) -> None:
    (place / "token").write_text(content)
    refused = ckpt_process("dashboard", "--source", place / "run", "--token-file", place / "token", cwd=place)
    assert_refused(refused, why)


def test_nothing_can_be_done_unless_it_is_allowed(place: Path, browser: Browser) -> None:
    (place / "ckpt.yaml").write_text("name: run\nregistry: registry\nsources: [{path: run}]\n")
    (place / "registry").mkdir(exist_ok=True)
    for arguments, count in (((), 0), (("--allow-actions",), 1)):
        with serving(place, *arguments) as served, eyes(browser, served.url) as seen:
            page = seen.page()
            page.goto(f"{served.url}/p/run")
            expect(page.locator("h1")).to_contain_text("run", timeout=60_000)
            expect(page.get_by_role("button", name="Promote…")).to_have_count(count)


def test_a_tab_does_nothing_more_once_its_visitor_signed_out(place: Path, browser: Browser) -> None:
    """Not even over the socket that it opens again with the cookie of the next visitor."""
    (place / "acts.yaml").write_text("name: run\nregistry: registry\nsources: [{path: run}]\nretention: {last: 1}\n")
    (place / "registry").mkdir(exist_ok=True)
    arguments = ("--config", "acts.yaml", "--allow-actions")
    with serving(place, *arguments, secret=TOKEN) as served, eyes(browser, served.url) as seen:
        left, other = seen.page(), seen.page()
        signed_in(left, served)
        left.goto(f"{served.url}/p/run")
        left.get_by_role("button", name="Prune…").click(timeout=60_000)
        left.get_by_role("button", name="Dry run…").click()
        expect(left.locator(".confirm")).to_be_visible()
        other.goto(served.url)
        with left.expect_websocket(timeout=30_000):
            other.get_by_role("button", name="Sign out").click()
            signed_in(other, served)
        left.get_by_role("button", name="Do it").click()
        expect(left.locator(".act-said")).to_contain_text("session is over")


def signed_in(page: Page, served: Served) -> None:
    page.goto(f"{served.url}/login")
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(f"{served.url}/")
