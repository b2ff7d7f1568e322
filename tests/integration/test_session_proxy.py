"""Browsers at ports of members: through a real api and a real agent of a local runtime, with hosts of a domain for sessions."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin, Subprotocol

from tests.conftest import Service
from tests.integration.rows import value
from tests.integration.test_member_streams import local_agent
from tests.waiting import eventually
from trainmaster_dispatcher.api import app as api_app
from trainmaster_dispatcher.api import proxied_web_sockets

DOMAIN = "sessions.localhost"
FIRST_PAGE = "/lab?token=a%20b"
SUBPROTOCOLS = [Subprotocol("b"), Subprotocol("a")]
SERVER = Path(__file__).with_name("session_server.py")


@pytest.fixture
def more_settings() -> dict[str, Any]:
    return {"sessions_domain": DOMAIN}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@dataclass
class Page:
    """A running session with a server, and how a browser reaches it."""

    service: Service
    job: str
    port: int
    key: str
    key_id: int

    @property
    def host(self) -> str:
        return f"{self.port}--{self.job}.{DOMAIN}"

    def browser(self, **headers: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.service.url, headers={"Host": self.host, **headers}, timeout=30)

    async def link(self, key: str | None = None, port: str | None = None) -> httpx.Response:
        async with self.service.as_key(key or self.key) as http:
            return await http.post(f"/v1/jobs/{self.job}/session-links", json={"port": port or str(self.port)})

    @asynccontextmanager
    async def socket(self, path: str = "/socket", **options: Any) -> AsyncIterator[ClientConnection]:
        """Open a WebSocket as a browser does."""
        url = httpx.URL(self.service.url)
        address = f"ws://{self.host}:{url.port}{path}"
        places: dict[str, Any] = {"host": url.host, "port": url.port, "subprotocols": SUBPROTOCOLS}
        async with connect(address, proxy=None, **places, **options) as line:
            yield line

    async def enter(self) -> str:
        """Return the cookie that a link gives, as a browser sends it."""
        made = await self.link()
        assert made.status_code == 200, made.text
        url = httpx.URL(made.json()["url"])
        assert url.host == self.host
        async with self.browser() as browser:
            entered = await browser.get(url.raw_path.decode())
            assert (entered.status_code, entered.headers["location"]) == (303, "/")
            again = await browser.get(url.raw_path.decode())
            assert again.status_code == 401, "a link counts once"
        cookie = entered.headers["set-cookie"]
        assert "HttpOnly" in cookie
        return str(cookie.partition(";")[0])


@pytest.fixture
async def page(service: Service, tmp_path: Path, python: str) -> AsyncIterator[Page]:
    made = (await service.http.post("/v1/keys", json={"name": "ann", "role": "user", "queues": ["default"]})).json()
    port = free_port()
    async with local_agent(service, tmp_path / "agent"):
        template = {"command": [python, "-P", str(SERVER), str(port)], "resources": {"cpu": "1"}}
        body = {
            "kind": "Session",
            "name": "web",
            "queue": "default",
            "roles": [{"name": "main", "template": template}],
            "session": {"ports": [{"name": "page", "port": port, "path": FIRST_PAGE}]},
        }
        async with service.as_key(made["key"]) as http:
            job = (await http.post("/v1/jobs", json=body)).json()["id"]
        await service.until(job, "running")

        async def answers() -> bool:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                return False
            writer.close()
            return True

        await eventually(answers)
        yield Page(service, job, port, made["key"], made["id"])
        await service.http.post(f"/v1/jobs/{job}/cancel", json={"grace": "0s"})
        await service.until(job, "cancelled")


async def test_a_browser_opens_a_port_by_a_link(page: Page) -> None:
    async with page.browser(Cookie=f"own=1; {await page.enter()}") as browser:
        answer = await browser.get("/echo?a=1", headers={"Connection": "keep-alive, X-Hop", "X-Hop": "1"})
        assert answer.status_code == 200, answer.text
        seen = answer.json()
        assert (seen["method"], seen["target"]) == ("GET", "/echo?a=1")
        assert seen["headers"]["host"] == page.host
        assert seen["headers"]["cookie"] == "own=1"
        assert seen["headers"]["x-forwarded-proto"] == "http"
        assert "x-hop" not in seen["headers"]
        assert (await browser.post("/echo", content=b"x" * 300_000)).json()["size"] == 300_000

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(5):
                yield b"y" * 1000

        assert (await browser.post("/echo", content=pieces())).json()["size"] == 5000
        assert (await browser.get("/none")).status_code == 404
        assert (await browser.head("/echo")).status_code == 200
        large = await browser.get("/large")
        assert (len(large.content), large.content[:3], large.content[-3:]) == (3_000_000, b"abc", b"abc")


async def test_the_audit_has_who_opened_which_port_and_the_session_is_in_use(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with page.browser(Cookie=await page.enter()) as browser:
        for _ in range(3):
            assert (await browser.get("/echo")).status_code == 200
    lines = (await page.service.http.get("/v1/audit", params={"action": "open port"})).json()["audit"]
    (line,) = lines
    assert (line["actor"], line["target"], line["details"]["port"]) == ("ann", page.job, page.port)

    async def is_active() -> bool:
        return bool(await value(page.service.stores, "SELECT active_at IS NOT NULL FROM session_activity"))

    await eventually(is_active, 20)


async def test_without_a_cookie_the_page_says_how_to_open_it(page: Page) -> None:
    async with page.browser() as browser:
        answer = await browser.get("/echo")
        assert answer.status_code == 401
        assert f"trainmaster open {page.job} {page.port}" in answer.text
        assert (await browser.get("/.trainmaster/enter?ticket=none")).status_code == 401
        assert (await browser.get("/.trainmaster/enter")).status_code == 401
        wrong = await browser.get("/echo", headers={"Cookie": "trainmaster-session=wrong"})
        assert wrong.status_code == 401


async def test_a_link_to_a_named_port_leads_to_its_first_page(page: Page) -> None:
    url = httpx.URL((await page.link(port="page")).json()["url"])
    async with page.browser(Host=url.host) as browser:
        entered = await browser.get(url.raw_path.decode())
        assert (entered.status_code, entered.headers["location"]) == (303, FIRST_PAGE)
        assert (
            await browser.get("/echo", headers={"Cookie": entered.headers["set-cookie"].partition(";")[0]})
        ).is_success


async def test_a_person_gets_a_page_that_says_how_to_open_it_and_a_program_a_text(page: Page) -> None:
    async with page.browser() as browser:
        answer = await browser.get("/", headers={"Accept": "text/html,*/*;q=0.8"})
        assert (answer.status_code, answer.headers["content-type"]) == (401, "text/html; charset=utf-8")
        assert f"<code>trainmaster open {page.job} {page.port}</code>" in answer.text
        assert f"<h1>port {page.port} of {page.job} cannot be opened</h1>" in answer.text
        assert (answer.headers["cache-control"], "script" in answer.text) == ("no-store", False)
        text = (await browser.get("/")).text
        assert text.splitlines()[1:] == [f"Open it with: trainmaster open {page.job} {page.port}"]


async def test_the_page_of_a_session_that_has_ended_says_so(page: Page) -> None:
    cookie = await page.enter()
    await page.service.http.post(f"/v1/jobs/{page.job}/cancel", json={"grace": "0s"})
    await page.service.until(page.job, "cancelled")
    async with page.browser(Cookie=cookie, Accept="text/html") as browser:
        answer = await browser.get("/")
    assert answer.status_code == 502
    assert f"<p>{page.job} is cancelled, and its run 1 has ended: no member of it runs.</p>" in answer.text
    assert "trainmaster open" not in answer.text, "no link helps any more"


async def test_a_cookie_of_one_port_opens_no_other(page: Page) -> None:
    cookie = await page.enter()
    for host in (f"page--{page.job}.{DOMAIN}", f"{page.port}--other-0000001.{DOMAIN}", f"1--{page.job}.{DOMAIN}"):
        async with page.browser(Cookie=cookie) as browser:
            answer = await browser.get("/echo", headers={"Host": host})
            assert answer.status_code == 401, host


async def test_pages_of_others_make_no_requests_with_the_cookie(page: Page) -> None:
    async with page.browser(Cookie=await page.enter(), Origin=f"http://8888--evil-0000001.{DOMAIN}") as browser:
        assert (await browser.post("/echo", content=b"x")).status_code == 403
    async with page.browser(Cookie=await page.enter(), Origin=f"http://{page.host}") as browser:
        assert (await browser.post("/echo", content=b"x")).status_code == 200


async def test_another_user_gets_no_link(page: Page) -> None:
    http = page.service.http
    await http.put("/v1/queues/other", json={"path": "other"})
    found = {}
    for name, queue in (("bob", "default"), ("eve", "other")):
        made = (await http.post("/v1/keys", json={"name": name, "role": "user", "queues": [queue]})).json()
        found[name] = (await page.link(made["key"])).status_code
    assert found == {"bob": 403, "eve": 404}


async def test_the_api_is_as_before_at_other_hosts(page: Page) -> None:
    for host in ("127.0.0.1", DOMAIN, f"x.{DOMAIN}", f"{page.port}--{page.job}.elsewhere.org"):
        answer = await page.service.http.get("/healthz", headers={"Host": host})
        assert (answer.status_code, answer.json()["status"]) == (200, "alive")
    async with page.browser(Cookie=await page.enter()) as browser:
        assert (await browser.get("/healthz")).status_code == 404, "it is the member's address here"


async def test_a_web_socket_goes_through(page: Page) -> None:
    cookie = await page.enter()
    origin = Origin(f"http://{page.host}:{httpx.URL(page.service.url).port}")
    options: dict[str, Any] = {"additional_headers": {"Cookie": cookie}, "origin": origin}
    async with page.socket("/socket?b=2", **options) as line:
        assert line.subprotocol == "a"
        assert await line.recv() == "/socket?b=2"
        await line.send("hello")
        assert await line.recv() == "hello"
        data = bytes(range(256)) * 2000
        await line.send(data)
        assert await line.recv() == data
        await line.send("close")
        with pytest.raises(ConnectionClosed):
            await line.recv()
        assert (line.close_code, line.close_reason) == (4001, "as you wish")


async def test_a_web_socket_without_cookie_or_of_another_page_is_refused(page: Page) -> None:
    cookie = await page.enter()
    statuses = []
    foreign: dict[str, Any] = {"additional_headers": {"Cookie": cookie}, "origin": Origin("http://evil.org")}
    for options in ({}, foreign):
        with pytest.raises(InvalidStatus) as caught:
            async with page.socket(**options):
                pass
        statuses.append(caught.value.response.status_code)
    assert statuses == [401, 403]


async def test_a_member_that_takes_no_web_socket_or_nothing_at_all_is_named(page: Page) -> None:
    cookie = await page.enter()
    with pytest.raises(InvalidStatus) as caught:
        async with page.socket("/echo", additional_headers={"Cookie": cookie}):
            pass
    assert caught.value.response.status_code == 502
    page.port = free_port()
    async with page.browser(Cookie=await page.enter()) as browser:
        answer = await browser.get("/")
        assert answer.status_code == 502
        assert f"nothing answers at port {page.port}" in answer.text


async def test_a_revoked_key_closes_what_it_has_opened(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_app, "_KEYS_SECONDS", 0.05)
    monkeypatch.setattr(proxied_web_sockets, "_LOOK_SECONDS", 0.05)
    cookie = await page.enter()
    async with page.browser(Cookie=cookie) as browser, page.socket(additional_headers={"Cookie": cookie}) as line:
        assert await line.recv() == "/socket"
        assert (await browser.get("/echo")).status_code == 200
        assert (await page.service.http.delete(f"/v1/keys/{page.key_id}")).status_code == 204
        with pytest.raises(ConnectionClosed):
            await line.recv()

        async def is_closed() -> bool:
            return (await browser.get("/echo")).status_code == 401

        await eventually(is_closed)


async def test_a_slow_reader_holds_up_nobody_else(page: Page) -> None:
    cookie = await page.enter()
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(page.service.url).port or 0, limit=1024)
    writer.write(f"GET /endless HTTP/1.1\r\nHost: {page.host}\r\nCookie: {cookie}\r\n\r\n".encode())
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    async with page.browser(Cookie=cookie) as browser:
        for _ in range(5):
            assert (await browser.get("/echo")).status_code == 200
    writer.close()
