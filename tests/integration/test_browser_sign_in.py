"""People who sign in by a browser: the authorization code flow with PKCE, the session behind the cookie, and what it opens."""

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import jwt
import orjson
import pytest
from fastapi import FastAPI

from tests.conftest import Service, job
from tests.integration.rows import rows
from tests.integration.test_oidc import BINDING, bind, refusal
from tests.oidc_issuer import CLIENT_ID, ServedIssuer, make_key, running_issuer
from tests.waiting import eventually
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster_dispatcher.api import id_tokens, issuer_keys
from trainmaster_dispatcher.api.app import make_app
from trainmaster_dispatcher.api.browser_sessions import IDLE_SECONDS, LIFE_SECONDS, BrowserSessions
from trainmaster_dispatcher.api.keyring import Keyring
from trainmaster_dispatcher.api.sign_ins import SignIns
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.issuers import read_issuers
from trainmaster_dispatcher.services.tenants import hash_key

ORIGIN = "https://trainmaster.test"
SESSION = "__Host-trainmaster"
HTML = {"Accept": "text/html,application/xhtml+xml"}
SECRET = "a secret:with/signs"


@pytest.fixture
def issuer() -> Iterator[ServedIssuer]:
    with running_issuer() as served:
        yield served


@pytest.fixture
def partner() -> Iterator[ServedIssuer]:
    with running_issuer() as served:
        served.client_secret = SECRET
        yield served


@pytest.fixture
def more_settings(
    issuer: ServedIssuer, partner: ServedIssuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    monkeypatch.setattr(issuer_keys, "_PAUSE_SECONDS", 0.0)
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    further = {
        "name": "partner",
        "issuer": partner.url,
        "clientIds": ["command-line"],
        "browserClient": {"id": CLIENT_ID, "secretFile": str(tmp_path / "secret")},
        "prefix": "partner:",
    }
    file = tmp_path / "issuers.yaml"
    file.write_bytes(orjson.dumps({"issuers": [further]}))
    return {
        "oidc_issuer": issuer.url,
        "oidc_client_ids": CLIENT_ID,
        "oidc_issuers_file": str(file),
        "public_url": f"{ORIGIN}/",
    }


@pytest.fixture
async def bound(service: Service) -> Service:
    await bind(service, BINDING | {"groups": ["vision", "partner:vision"]})
    return service


@dataclass
class Browser:
    """A browser at the address of the dispatcher, with its cookies, of which it has no others."""

    http: httpx.AsyncClient
    cookies: dict[str, str] = field(default_factory=dict)
    csrf: str = ""

    async def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {"Cookie": "; ".join(f"{name}={text}" for name, text in self.cookies.items())}
        answer = await self.http.request(method, path, **options | {"headers": headers | options.get("headers", {})})
        for line in answer.headers.get_list("set-cookie"):
            name, _, rest = line.partition("=")
            value, _, attributes = rest.partition(";")
            assert {"httponly", "secure", "samesite=lax", "path=/"} <= {
                one.strip().lower() for one in attributes.split(";")
            }, line
            if "max-age=0" in attributes.lower():
                self.cookies.pop(name, None)
            else:
                self.cookies[name] = value.strip('"')
        return answer

    async def begin(self, return_to: str = "/jobs?queue=a", name: str = "default") -> str:
        """Return the address of the issuer to which the browser is sent."""
        answer = await self.call("GET", "/v1/sign-in/browser", params={"return": return_to, "issuer": name})
        assert answer.status_code == 303, answer.text
        return str(answer.headers["location"])

    async def back(self, address: str) -> httpx.Response:
        """Go back from the issuer to an address of the dispatcher."""
        parts = urlsplit(address)
        assert f"{parts.scheme}://{parts.netloc}" == ORIGIN
        return await self.call("GET", f"{parts.path}?{parts.query}", headers=HTML)

    async def sign_in(self, issuer: ServedIssuer, name: str = "default") -> None:
        answer = await self.back(issuer.sign_in(await self.begin(name=name)))
        assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?queue=a"), answer.text
        self.csrf = (await self.whoami()).json()["csrfToken"]

    async def whoami(self) -> httpx.Response:
        return await self.call("GET", "/v1/whoami")

    async def change(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Make a call as the dispatcher's own page does."""
        headers = {"X-Trainmaster-CSRF": self.csrf, "Origin": ORIGIN, "Sec-Fetch-Site": "same-origin"}
        return await self.call(method, path, headers=headers, **options)


@pytest.fixture
async def browser(bound: Service) -> AsyncIterator[Browser]:
    async with httpx.AsyncClient(base_url=bound.url, timeout=30) as http:
        yield Browser(http)


@asynccontextmanager
async def another_api(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    """Run another api on the same store."""
    app = make_app(service.settings)
    assert isinstance(app.routes, FastAPI)
    async with (
        app.routes.router.lifespan_context(app.routes),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=service.url) as http,
    ):
        yield http


async def test_a_person_signs_in_and_comes_back_to_the_page(
    bound: Service, browser: Browser, issuer: ServedIssuer
) -> None:
    address = await browser.begin()
    query = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
    assert address.startswith(f"{issuer.url}/auth?")
    assert (query["response_type"], query["client_id"], query["code_challenge_method"]) == ("code", CLIENT_ID, "S256")
    assert query["redirect_uri"] == f"{ORIGIN}/v1/sign-in/callback"
    assert query["scope"].split() == ["openid", "email", "groups", "offline_access"]
    answer = await browser.back(issuer.sign_in(address))
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?queue=a")
    assert list(browser.cookies) == [SESSION], "that of the sign-in is removed"
    found = (await browser.whoami()).json()
    assert (found["name"], found["groups"], found["queues"]) == ("ana@example.com", ["vision"], ["default"])
    stored = await rows(bound.stores, "SELECT hash, refresh_token FROM browser_sessions")
    assert [bytes(row.hash) for row in stored] == [hash_key(browser.cookies[SESSION])]
    assert b"refresh-" not in bytes(stored[0].refresh_token)

    async def is_in_audit() -> bool:
        lines = (await bound.http.get("/v1/audit", params={"actor": "ana@example.com"})).json()["audit"]
        return any(one["action"] == "sign in" for one in lines)

    await eventually(is_in_audit, 4)


@pytest.mark.parametrize("by_form", [False, True])
async def test_a_client_with_a_secret_signs_in(
    bound: Service, browser: Browser, partner: ServedIssuer, by_form: bool
) -> None:
    partner.by_form = by_form
    await refusal(
        bound, partner.token(aud=CLIENT_ID, header={"kid": "x"})
    )  # by which its discovery document is read again
    await browser.sign_in(partner, "partner")
    assert (await browser.whoami()).json()["name"] == "partner:ana@example.com"


async def test_with_several_issuers_a_page_lets_people_choose(browser: Browser, issuer: ServedIssuer) -> None:
    page = await browser.call("GET", "/v1/sign-in/browser", params={"return": "/a?b=1&c"})
    assert page.headers["content-type"].startswith("text/html")
    assert 'href="/v1/sign-in/browser?return=%2Fa%3Fb%3D1%26c&amp;issuer=partner"' in page.text
    policy = page.headers["content-security-policy"]
    assert ("default-src 'none'" in policy, "unsafe-inline" in policy, "frame-ancestors 'none'" in policy) == (
        True,
        False,
        True,
    )
    unknown = await browser.call("GET", "/v1/sign-in/browser", params={"issuer": "partnr"}, headers=HTML)
    assert (unknown.status_code, "did you mean &#x27;partner&#x27;" in unknown.text) == (404, True)


@pytest.mark.parametrize(
    "path",
    [
        "https://evil.example.com",
        "//evil.example.com",
        "/\\evil.example.com",
        "\\\\evil.example.com",
        "/a\\b",
        "evil",
        "javascript:alert(1)",
        "/\tevil",
        "/a\r\nSet-Cookie: x=1",
        "/\x00",
        "/ä",
        "/a b",
        "",
        "/v1/sign-in/browser",
        "/" + "a" * 1000,
    ],
)
async def test_a_browser_returns_to_paths_of_this_host_alone(browser: Browser, path: str) -> None:
    answer = await browser.call("GET", "/v1/sign-in/browser", params={"return": path, "issuer": "default"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-parameter"), path
    assert "location" not in answer.headers
    page = await browser.call("GET", "/v1/sign-in/browser", params={"return": path}, headers=HTML)
    assert (page.status_code, 'return=%2F"' in page.text) == (422, True)


async def failure(browser: Browser, address: str) -> str:
    """Return the page of a sign-in that has failed, once no session has begun."""
    answer = await browser.back(address)
    assert (answer.status_code, answer.headers["content-type"]) == (400, "text/html; charset=utf-8"), answer.text
    assert SESSION not in browser.cookies
    return answer.text


async def test_an_answer_with_another_state_counts_in_no_browser(browser: Browser, issuer: ServedIssuer) -> None:
    address = await browser.begin()
    assert "has not begun this sign-in" in await failure(browser, issuer.sign_in(address, state="x" * 43))
    for query in ({"code": "code-1"}, {"code": "code-1", "state": ""}, {}):
        assert "has not begun" in await failure(browser, f"{ORIGIN}/v1/sign-in/callback?{urlencode(query)}")
    # Another browser's answer: a link with which somebody would let others act in the own account.
    attacker = Browser(browser.http)
    answer = issuer.sign_in(await attacker.begin())
    assert "has not begun this sign-in" in await failure(browser, answer)


async def test_a_code_that_is_injected_into_the_browser_of_another_is_refused(
    browser: Browser, issuer: ServedIssuer
) -> None:
    """Try a code that was stolen from another browser: neither its verifier nor its nonce is that of this one."""
    victim = Browser(browser.http)
    stolen = parse_qs(urlsplit(issuer.sign_in(await victim.begin())).query)["code"][0]
    own = parse_qs(urlsplit(issuer.sign_in(await browser.begin())).query)["state"][0]
    answer = f"{ORIGIN}/v1/sign-in/callback?{urlencode({'code': stolen, 'state': own})}"
    assert "another code_verifier" in await failure(browser, answer)


async def test_a_token_with_another_nonce_is_refused(browser: Browser, issuer: ServedIssuer) -> None:
    assert "it has another nonce" in await failure(browser, issuer.sign_in(await browser.begin(), nonce="y" * 43))
    issuer.claims = {"nonce": None}
    assert "it has another nonce" in await failure(browser, issuer.sign_in(await browser.begin()))


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"aud": "command-line"}, "is for another client"),
        ({"iss": "https://evil.example.com"}, "is of the issuer"),
        ({"exp": 1}, "has expired"),
        ({"email_verified": False}, "has not verified"),
    ],
)
async def test_the_token_of_the_issuer_is_checked(
    browser: Browser, issuer: ServedIssuer, claims: dict[str, Any], why: str
) -> None:
    issuer.claims = claims
    assert why in await failure(browser, issuer.sign_in(await browser.begin()))


async def test_a_token_of_another_issuer_or_key_begins_no_session(
    browser: Browser, issuer: ServedIssuer, partner: ServedIssuer
) -> None:
    issuer.claims = {"iss": partner.url}
    assert "is of the issuer" in await failure(browser, issuer.sign_in(await browser.begin()))
    issuer.claims = {"key": make_key()}
    assert "a signature that is wrong" in await failure(browser, issuer.sign_in(await browser.begin()))
    mixed = issuer.sign_in(await browser.begin()) + f"&iss={partner.url}"
    assert "of another issuer than this browser was sent to" in await failure(browser, mixed)


async def test_an_answer_counts_once(browser: Browser, issuer: ServedIssuer) -> None:
    answer = issuer.sign_in(await browser.begin())
    kept = dict(browser.cookies)
    query = issuer.sent_to_sign_in[-1]
    assert (await browser.back(answer)).status_code == 303
    again = Browser(browser.http)
    assert "has not begun" in await failure(again, answer), "the cookie of the sign-in is gone"
    again.cookies = dict(kept)
    assert "the code was used before" in await failure(again, answer), "the issuer takes it once"
    again.cookies = dict(kept)
    issuer.codes["code-1"] = query
    assert "was used before" in await failure(again, answer), "and so does the dispatcher"


async def test_a_refusal_of_the_issuer_is_shown_as_text(browser: Browser, issuer: ServedIssuer) -> None:
    state = parse_qs(urlsplit(await browser.begin()).query)["state"][0]
    said = {"error": "access_denied", "error_description": "<script>alert(1)</script>", "state": state}
    page = await failure(browser, f"{ORIGIN}/v1/sign-in/callback?{urlencode(said)}")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    forged = said | {"state": "x"}
    assert "script" not in await failure(browser, f"{ORIGIN}/v1/sign-in/callback?{urlencode(forged)}")
    twice = f"{ORIGIN}/v1/sign-in/callback?state={state}&code=a&code=b"
    assert "has a parameter twice" in await failure(browser, twice)


async def test_who_is_not_bound_sees_a_page_that_says_so(browser: Browser, issuer: ServedIssuer) -> None:
    issuer.claims = {"groups": ["nlp"]}
    answer = await browser.back(issuer.sign_in(await browser.begin()))
    assert (answer.status_code, "who is in the groups nlp" in answer.text) == (403, True)
    assert SESSION not in browser.cookies


async def test_each_sign_in_has_a_session_of_its_own(bound: Service, browser: Browser, issuer: ServedIssuer) -> None:
    browser.cookies[SESSION] = "chosen-by-an-attacker"
    await browser.sign_in(issuer)
    first = browser.cookies[SESSION]
    assert first != "chosen-by-an-attacker"
    await browser.sign_in(issuer)
    assert browser.cookies[SESSION] != first
    old = Browser(browser.http, {SESSION: first})
    assert (await old.whoami()).status_code == 401
    found = await rows(bound.stores, "SELECT count(*) AS many FROM browser_sessions")
    assert found[0].many == 1


async def test_calls_that_change_something_need_the_token_of_the_session(
    bound: Service, browser: Browser, issuer: ServedIssuer
) -> None:
    await browser.sign_in(issuer)
    other = Browser(browser.http)
    await other.sign_in(issuer)
    mine, body = browser.csrf, orjson.dumps(job())
    form = {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-site"}
    refused: list[dict[str, str]] = [
        {},
        {"X-Trainmaster-CSRF": ""},
        {"X-Trainmaster-CSRF": mine[:-1]},
        {"X-Trainmaster-CSRF": other.csrf},
        {"Origin": ORIGIN},
        {"X-Trainmaster-CSRF": mine, "Origin": "https://evil.example.com"},
        {"X-Trainmaster-CSRF": mine, "Origin": "https://8888--job.trainmaster.test"},
        {"X-Trainmaster-CSRF": mine, "Origin": "null"},
        {"Origin": "https://evil.example.com", **form},
        form,
    ]
    for headers in refused:
        for method, path in (("POST", "/v1/jobs"), ("POST", "/v1/sign-out"), ("DELETE", "/v1/keys/1")):
            answer = await browser.call(method, path, content=body, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (403, "csrf"), (headers, method, path)
    assert (await bound.http.get("/v1/jobs")).json()["jobs"] == []
    assert (await browser.whoami()).status_code == 200, "nothing was signed out"
    made = await browser.change("POST", "/v1/jobs", content=body)
    assert made.status_code == 201, made.text
    assert (await bound.job(made.json()["id"]))["submittedBy"] == "ana@example.com"


async def test_a_cookie_opens_no_web_socket_of_another_page(
    bound: Service, browser: Browser, issuer: ServedIssuer
) -> None:
    await browser.sign_in(issuer)
    job_id = (await browser.change("POST", "/v1/jobs", content=orjson.dumps(job()))).json()["id"]
    shake = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": "v4.channel.k8s.io",
    }
    for origin in ({}, {"Origin": "https://8888--job.trainmaster.test"}):
        answer = await browser.call("GET", f"/v1/jobs/{job_id}/exec?command=id", headers=shake | origin)
        assert (answer.status_code, answer.json()["code"]) == (403, "csrf")
    own = await browser.call("GET", f"/v1/jobs/{job_id}/exec?command=id", headers=shake | {"Origin": ORIGIN})
    assert own.json()["code"] not in ("csrf", "unauthenticated", "forbidden"), "the job has no member that runs"


async def test_a_cookie_opens_calls_of_people_alone(bound: Service, browser: Browser, issuer: ServedIssuer) -> None:
    await bind(bound, {"name": "admins", "users": ["ana@example.com"], "role": "admin"})
    await browser.sign_in(issuer)
    for method, path in (
        ("GET", "/api/v1/namespaces"),
        ("GET", "/apis/trainmaster.dev/v1/jobs"),
        ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"),
        ("GET", "/agent/v1/files/x"),
    ):
        answer = await browser.change(method, path, json={})
        assert answer.status_code == 401, (method, path, answer.text)
    with_nothing = await browser.call("GET", "/v1/whoami", headers={"Cookie": ""})
    assert with_nothing.status_code == 401


async def test_a_key_comes_before_a_cookie(bound: Service, browser: Browser, issuer: ServedIssuer) -> None:
    await browser.sign_in(issuer)
    admin = await browser.call("GET", "/v1/whoami", headers={"Authorization": "Bearer tmk_admin"})
    assert (admin.json()["name"], admin.json()["csrfToken"]) == ("admin", None)
    for header in ("Bearer tmk_wrong", "Bearer", ""):
        answer = await browser.call("GET", "/v1/whoami", headers={"Authorization": header})
        assert answer.status_code == 401, header


async def test_who_signs_out_is_signed_out_everywhere(bound: Service, browser: Browser, issuer: ServedIssuer) -> None:
    await browser.sign_in(issuer)
    kept = Browser(browser.http, dict(browser.cookies))
    async with another_api(bound) as http:
        elsewhere = Browser(http, dict(browser.cookies))
        assert (await elsewhere.whoami()).json()["name"] == "ana@example.com"
        answer = await browser.change("POST", "/v1/sign-out")
        assert (answer.status_code, browser.cookies) == (204, {})
        refused = await kept.whoami()
        assert (refused.status_code, "sign in again" in refused.text) == (401, True)

        async def is_refused() -> bool:
            return (await elsewhere.whoami()).status_code == 401

        await eventually(is_refused, 4)
    assert await rows(bound.stores, "SELECT 1 FROM browser_sessions") == []
    nobody = await kept.call("POST", "/v1/sign-out", headers={"Cookie": ""})
    assert nobody.status_code == 401
    assert (await bound.http.post("/v1/sign-out")).status_code == 204
    assert (await bound.http.get("/v1/whoami")).status_code == 200, "the key goes on"


# --- the end of the issuer's own session


async def discovery_changes(service: Service, issuer: ServedIssuer) -> None:
    """Make the api read the discovery document of an issuer again."""
    reads = issuer.reads
    await refusal(service, issuer.token(header={"kid": "unknown"}))
    assert issuer.reads > reads


async def ends_sessions_at(service: Service, issuer: ServedIssuer, endpoint: Any = None) -> None:
    """Let an issuer say where browsers end their sessions with it: ``endpoint``, or a usual address."""
    issuer.end_session_endpoint = f"{issuer.url}/logout" if endpoint is None else endpoint
    await discovery_changes(service, issuer)


async def signed_out(browser: Browser) -> dict[str, str]:
    """Sign out; return the parameters of the address at which the issuer's session ends, and that address without them."""
    answer = await browser.change("POST", "/v1/sign-out")
    assert (answer.status_code, browser.cookies) == (200, {}), answer.text
    assert answer.headers["cache-control"] == "no-store"
    parts = urlsplit(answer.json()["endSessionUrl"])
    query = parse_qs(parts.query)
    assert all(len(values) == 1 for values in query.values())
    return {name: values[0] for name, values in query.items()} | {
        "address": f"{parts.scheme}://{parts.netloc}{parts.path}"
    }


async def test_sign_out_says_where_the_session_at_the_issuer_ends(
    bound: Service, browser: Browser, partner: ServedIssuer
) -> None:
    await ends_sessions_at(bound, partner, f"{partner.url}/logout?tenant=a%26b#part")
    await browser.sign_in(partner, "partner")
    stored = await rows(bound.stores, "SELECT id_token FROM browser_sessions")
    assert b"eyJ" not in bytes(stored[0].id_token), "who has the store alone reads no token"
    kept = Browser(browser.http, dict(browser.cookies))
    found = await signed_out(browser)
    claims = jwt.decode(found.pop("id_token_hint"), options={"verify_signature": False})
    assert (claims["iss"], claims["aud"], claims["sub"]) == (partner.url, CLIENT_ID, "1001")
    assert found == {
        "address": f"{partner.url}/logout",
        "tenant": "a&b",
        "client_id": CLIENT_ID,
        "post_logout_redirect_uri": f"{ORIGIN}/",
    }
    assert (await kept.whoami()).status_code == 401
    assert await rows(bound.stores, "SELECT 1 FROM browser_sessions") == []


async def test_a_token_that_opens_calls_is_put_into_no_address(
    bound: Service, browser: Browser, issuer: ServedIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ends_sessions_at(bound, issuer)
    issuer.claims = {"exp": int(time.time()) - 30}
    await browser.sign_in(issuer)
    assert "id_token_hint" not in await signed_out(browser), "the command line has the same client"
    await browser.sign_in(issuer)
    monkeypatch.setattr(id_tokens, "LEEWAY_SECONDS", 0)
    assert "id_token_hint" in await signed_out(browser), "it has expired"


async def test_a_token_whose_key_the_issuer_has_replaced_is_put_into_no_address(
    bound: Service, browser: Browser, partner: ServedIssuer
) -> None:
    await ends_sessions_at(bound, partner)
    await browser.sign_in(partner, "partner")
    partner.keys, partner.signs_with = {"second": make_key()}, "second"
    await discovery_changes(bound, partner)
    assert "id_token_hint" not in await signed_out(browser)


async def test_a_token_that_is_too_long_for_an_address_is_left_out(
    bound: Service, browser: Browser, partner: ServedIssuer
) -> None:
    await ends_sessions_at(bound, partner)
    partner.claims = {"note": "x" * 4000}
    await browser.sign_in(partner, "partner")
    found = await signed_out(browser)
    assert (found["client_id"], "id_token_hint" in found) == (CLIENT_ID, False)


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://sso.example.com/logout",
        "javascript:alert(1)",
        "//evil.example.com",
        "/logout",
        "https:",
        "https://[x",
        "",
        7,
        ["x"],
    ],
)
async def test_an_issuer_whose_address_cannot_be_trusted_is_not_visited(
    bound: Service, browser: Browser, partner: ServedIssuer, endpoint: Any
) -> None:
    await ends_sessions_at(bound, partner, endpoint)
    await browser.sign_in(partner, "partner")
    answer = await browser.change("POST", "/v1/sign-out")
    assert (answer.status_code, answer.content, browser.cookies) == (204, b"", {})
    assert await rows(bound.stores, "SELECT 1 FROM browser_sessions") == []


async def test_who_is_not_bound_any_more_signs_out_at_the_issuer_too(
    bound: Service, browser: Browser, partner: ServedIssuer
) -> None:
    await ends_sessions_at(bound, partner)
    await browser.sign_in(partner, "partner")
    assert (await bound.http.delete("/v1/role-bindings/vision")).status_code == 204

    async def is_refused() -> bool:
        return (await browser.whoami()).status_code == 403

    await eventually(is_refused, 4)
    assert "id_token_hint" in await signed_out(browser)


async def test_a_silent_issuer_keeps_nobody_signed_in(
    bound: Service, browser: Browser, partner: ServedIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ends_sessions_at(bound, partner)
    await browser.sign_in(partner, "partner")
    monkeypatch.setattr(issuer_keys, "_READ_SECONDS", 0.3)
    partner.answers.clear()
    try:
        async with another_api(bound) as http:
            later = Browser(http, dict(browser.cookies), browser.csrf)
            answer = await later.change("POST", "/v1/sign-out")
            assert (answer.status_code, later.cookies) == (204, {}), "that api has never read its addresses"
    finally:
        partner.answers.set()
    assert await rows(bound.stores, "SELECT 1 FROM browser_sessions") == []


async def test_sessions_go_on_at_an_api_that_was_started_later(
    bound: Service, browser: Browser, issuer: ServedIssuer
) -> None:
    await browser.sign_in(issuer)
    async with another_api(bound) as http:
        later = Browser(http, dict(browser.cookies), browser.csrf)
        assert (await later.whoami()).json()["csrfToken"] == browser.csrf
        assert (await later.change("POST", "/v1/jobs", content=orjson.dumps(job()))).status_code == 201


async def test_a_person_who_was_revoked_or_is_not_bound_has_no_session(
    bound: Service, browser: Browser, issuer: ServedIssuer
) -> None:
    await browser.sign_in(issuer)
    number = (await browser.whoami()).json()["id"]
    assert (await bound.http.delete(f"/v1/keys/{number}")).status_code == 204

    async def answers(status: int, words: str) -> bool:
        answer = await browser.whoami()
        return (answer.status_code, words in answer.text) == (status, True)

    await eventually(lambda: answers(401, "was locked out"), 4)
    assert (await bound.http.post(f"/v1/keys/{number}/restore")).status_code == 204
    await eventually(lambda: answers(200, "ana"), 4)
    assert (await bound.http.delete("/v1/role-bindings/vision")).status_code == 204
    await eventually(lambda: answers(403, "no role binding names the user"), 4)


async def test_an_issuer_that_is_silent_is_told_on_a_page(
    browser: Browser, issuer: ServedIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = await browser.begin()
    monkeypatch.setattr(issuer_keys, "_READ_SECONDS", 0.3)
    answer = issuer.sign_in(address)
    issuer.answers.clear()
    page = await browser.back(answer)
    issuer.answers.set()
    assert (page.status_code, "does not answer in time" in page.text) == (503, True)


# --- on a clock of the test


@dataclass
class Time:
    """The time that sessions go by; that of the cache moves with it."""

    now: float = 4e9

    def __call__(self) -> float:
        return self.now


@dataclass
class Api:
    """The sessions of one api."""

    sessions: BrowserSessions
    sign_ins: SignIns
    issuer: ServedIssuer

    async def signed_in(self, refresh_token: str = "") -> str:
        account = await self.sign_ins.read(self.issuer.token(), self.sessions.issuers[0])
        caller = await self.sign_ins.caller_of(account)
        return await self.sessions.begin(
            caller, f"state of {refresh_token}", refresh_token, "", id_token="the first token"
        )

    async def code(self, secret: str) -> Code | None:
        """Return why a session does not count; None where it does."""
        try:
            await self.sessions.caller(secret)
        except ProblemError as error:
            return error.code
        return None


@asynccontextmanager
async def api_on(clock: Time, service: Service, issuer: ServedIssuer) -> AsyncIterator[Api]:
    stores = Stores.open(service.settings)
    issuers, keyring = read_issuers(service.settings), Keyring(stores)
    sign_ins = SignIns(stores, keyring, issuers)
    sessions = BrowserSessions(stores, keyring, sign_ins, issuers, now=clock, clock=clock)
    try:
        yield Api(sessions, sign_ins, issuer)
    finally:
        await sign_ins.close()
        await stores.close()


async def test_a_session_ends_when_it_is_idle_and_after_its_longest_life(bound: Service, issuer: ServedIssuer) -> None:
    clock = Time()
    async with api_on(clock, bound, issuer) as one, api_on(clock, bound, issuer) as other:
        secret = await one.signed_in()
        clock.now += IDLE_SECONDS - 1
        assert await one.code(secret) is None
        clock.now += IDLE_SECONDS - 1
        assert await other.code(secret) is None, "the use at the other api counts"
        clock.now += IDLE_SECONDS
        assert await one.code(secret) is Code.UNAUTHENTICATED
        assert await other.code(secret) is Code.UNAUTHENTICATED
        secret, began = await one.signed_in("again"), clock.now
        await bound.http.get("/v1/whoami")
        while clock.now < began + LIFE_SECONDS - 1:
            assert await one.code(secret) is None, clock.now - began
            clock.now = min(clock.now + IDLE_SECONDS / 2, began + LIFE_SECONDS - 1)
        assert await one.code(secret) is not Code.UNAUTHENTICATED
        clock.now += 1
        assert await one.code(secret) is Code.UNAUTHENTICATED
        assert await other.code(secret) is Code.UNAUTHENTICATED
    assert await rows(bound.stores, "SELECT 1 FROM browser_sessions") == []


async def test_rights_end_with_the_account_at_the_issuer(bound: Service, issuer: ServedIssuer) -> None:
    clock = Time()
    async with api_on(clock, bound, issuer) as one, api_on(clock, bound, issuer) as other:
        secret = await one.signed_in("refresh-0")
        assert await one.code(secret) is None
        assert issuer.grants == []
        clock.now += 601
        issuer.claims = {"groups": ["vision", "more"]}
        assert await one.code(secret) is None
        assert issuer.grants == ["refresh_token"]
        assert (await one.sessions.caller(secret)).groups == ("vision", "more"), "groups are those of now"
        assert await other.code(secret) is None
        assert issuer.grants == ["refresh_token"], "one api asks for all"
        clock.now += 601
        issuer.refuses_refresh = True
        assert await other.code(secret) is Code.UNAUTHENTICATED
        clock.now += 2
        assert await one.code(secret) is Code.UNAUTHENTICATED


async def test_the_last_token_of_a_session_is_kept_for_its_end(bound: Service, issuer: ServedIssuer) -> None:
    clock = Time()
    async with api_on(clock, bound, issuer) as one:
        first = await one.signed_in("refresh-0")
        assert (await one.sessions.end(first)).id_token == "the first token"
        assert (await one.sessions.end(first)).id_token == "", "it has ended before"
        second = await one.signed_in("refresh-1")
        clock.now += 601
        issuer.claims = {"nonce": "of the renewal"}
        assert await one.code(second) is None
        ended = await one.sessions.end(second)
        assert ended.issuer is not None
        assert ended.issuer.url == issuer.url
        assert jwt.decode(ended.id_token, options={"verify_signature": False})["nonce"] == "of the renewal"


async def test_a_session_goes_on_for_a_while_without_its_issuer(
    bound: Service, issuer: ServedIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Time()
    async with api_on(clock, bound, issuer) as one:
        secret = await one.signed_in("refresh-0")
        assert await one.code(secret) is None
        monkeypatch.setattr(issuer, "granted", lambda _form: (503, {}))
        clock.now += 601
        assert await one.code(secret) is None
        clock.now += 900
        assert await one.code(secret) is Code.ISSUER_AWAY
        monkeypatch.undo()
        clock.now += 31
        assert await one.code(secret) is None


async def test_a_token_of_another_account_ends_the_session(bound: Service, issuer: ServedIssuer) -> None:
    clock = Time()
    async with api_on(clock, bound, issuer) as one:
        secret = await one.signed_in("refresh-0")
        issuer.claims = {"sub": "1002", "email": "bo@example.com"}
        clock.now += 601
        assert await one.code(secret) is Code.UNAUTHENTICATED
