"""The dashboard as the api serves it: its page at each of its addresses, its files, headers, and what it leaves to others."""

import gzip
import os
from pathlib import Path

import httpx
import pytest

from trainmaster_dispatcher.api.app import make_app
from trainmaster_dispatcher.api.audience import Audience
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.web.assets import PAGES, WITH_OBJECTS

INDEX = b'<!doctype html><script type="module" src="/static/main-abc123.js"></script>'
SCRIPT = b"console.log('page');" * 50


@pytest.fixture
def assets(tmp_path: Path) -> Path:
    folder = tmp_path / "assets"
    (folder / "static").mkdir(parents=True)
    for name, content in {"index.html": INDEX, "static/main-abc123.js": SCRIPT}.items():
        (folder / name).write_bytes(content)
        (folder / f"{name}.gz").write_bytes(gzip.compress(content))
    (folder / "static" / "font-1.woff2").write_bytes(b"font")
    (tmp_path / "secret").write_text("secret")
    (folder / "static" / "link").symlink_to(tmp_path / "secret")
    return folder


def client(assets: Path, audience: Audience = Audience.ALL, **fields: object) -> httpx.AsyncClient:
    settings = Settings.model_validate({"database_url": "postgresql://nowhere/none", **fields})
    app = make_app(settings, audience, assets)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8470")


@pytest.fixture
def http(assets: Path) -> httpx.AsyncClient:
    return client(assets)


def every_address() -> list[str]:
    return ["/", *PAGES, *(f"{page}/x-0000001/y" for page in PAGES if page in WITH_OBJECTS)]


@pytest.mark.parametrize("path", every_address())
async def test_the_page_is_at_each_of_its_addresses(http: httpx.AsyncClient, path: str) -> None:
    answer = await http.get(path)
    assert (answer.status_code, answer.content) == (200, INDEX)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    again = await http.get(path, headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


async def test_headers_let_the_page_load_only_what_is_of_this_api(http: httpx.AsyncClient) -> None:
    for path in ("/", "/static/main-abc123.js"):
        headers = (await http.get(path)).headers
        policy = dict(one.strip().partition(" ")[::2] for one in headers["content-security-policy"].split(";"))
        assert policy == {
            "default-src": "'none'",
            "script-src": "'self'",
            "style-src": "'self'",
            "img-src": "'self' data:",
            "font-src": "'self'",
            "connect-src": "'self'",
            "manifest-src": "'self'",
            "base-uri": "'none'",
            "form-action": "'self'",
            "frame-ancestors": "'none'",
        }
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["cross-origin-opener-policy"] == "same-origin"
        assert "camera=()" in headers["permissions-policy"]


async def test_files_are_kept_for_ever_and_sent_as_they_were_compressed(http: httpx.AsyncClient, assets: Path) -> None:
    short = await http.get("/static/main-abc123.js", headers={"Accept-Encoding": "br, gzip"})
    assert short.headers["content-encoding"] == "gzip"
    assert (short.content, int(short.headers["content-length"])) == (
        SCRIPT,
        (assets / "static" / "main-abc123.js.gz").stat().st_size,
    )
    plain = await http.get("/static/main-abc123.js", headers={"Accept-Encoding": "identity"})
    assert ("content-encoding" in plain.headers, plain.content) == (False, SCRIPT)
    for answer in (short, plain):
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.headers["vary"] == "Accept-Encoding"
        assert answer.headers["content-type"].startswith("text/javascript")
    font = await http.get("/static/font-1.woff2", headers={"Accept-Encoding": "gzip"})
    assert ("content-encoding" in font.headers, font.headers["content-type"]) == (False, "font/woff2")
    head = await http.head("/static/main-abc123.js")
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize(
    "path",
    [
        "/static/",
        "/static/main-abc124.js",
        "/static/link",
        "/static/../index.html",
        "/static/%2e%2e/%2e%2e/secret",
        "/static/..%2f..%2fsecret",
        "/static//etc/passwd",
        "/static/main-abc123.js.gz",
        "/index.html",
        "/submit/x",
        "/jobsx",
        "/v1/unknown",
        "/v2/jobs",
        "/favicon.ico",
    ],
)
async def test_everything_else_is_not_found(http: httpx.AsyncClient, path: str) -> None:
    answer = await http.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json"), answer.text
    assert answer.json()["code"] == "not-found"
    assert answer.json()["detail"].startswith("there is nothing at /")
    assert "immutable" not in answer.headers.get("cache-control", "")


async def test_pages_are_only_read(http: httpx.AsyncClient) -> None:
    for path in ("/", "/jobs", "/jobs/x-1", "/static/main-abc123.js"):
        answer = await http.post(path)
        assert (answer.status_code, answer.json()["code"]) == (405, "method-not-allowed")


async def test_other_pages_stay_as_they_were(http: httpx.AsyncClient) -> None:
    for path, words in {
        "/docs": "swagger-ui",
        "/redoc": "redoc",
        "/healthz": "alive",
        "/openapi.json": "openapi",
    }.items():
        answer = await http.get(path)
        assert answer.status_code == 200
        assert words in answer.text


async def test_without_a_build_a_page_says_how_to_make_one(assets: Path) -> None:
    index = assets / "index.html"
    index.rename(assets / "later.html")
    async with client(assets) as http:
        answer = await http.get("/jobs")
        assert (answer.status_code, answer.headers["cache-control"]) == (503, "no-store")
        assert "scripts/build-web" in answer.text
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert (await http.get("/static/main-abc123.js")).status_code == 404
        (assets / "later.html").rename(index)
        assert (await http.get("/jobs")).content == INDEX, "it is served once it is built, without a restart"


async def test_a_build_replaces_the_page_of_a_running_api(assets: Path) -> None:
    async with client(assets) as http:
        first = await http.get("/")
        for name in ("index.html", "index.html.gz"):
            (assets / name).unlink()
        assert (await http.get("/")).content == INDEX, "while it is built, the one before"
        (assets / "static" / "main-def456.js").write_bytes(b"2")
        (assets / "index.html").write_bytes(b"<!doctype html>2")
        os.utime(assets / "index.html", ns=(1, 4_102_444_800_000_000_000))
        second = await http.get("/", headers={"If-None-Match": first.headers["etag"]})
        assert (second.status_code, second.content) == (200, b"<!doctype html>2")
        assert (await http.get("/static/main-def456.js")).content == b"2"


async def test_it_can_be_switched_off(assets: Path) -> None:
    async with client(assets, dashboard=False) as http:
        answer = await http.get("/")
        assert answer.json()["detail"] == "there is nothing at /; the API begins at /v1, and /docs describes it"
        for path in ("/jobs", "/static/main-abc123.js"):
            assert (await http.get(path)).json()["code"] == "not-found"


async def test_an_api_for_agents_has_no_page(assets: Path) -> None:
    async with client(assets, Audience.AGENTS) as http:
        assert (await http.get("/")).status_code == 404
        assert (await http.get("/jobs")).status_code == 404
