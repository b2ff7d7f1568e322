"""Sign-in by a browser with an API key, without an issuer and a public address: the session, and who may not begin one."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.conftest import ADMIN_KEY, Service, job
from tests.integration.rows import rows
from tests.integration.test_browser_sign_in import Time
from tests.waiting import eventually
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster_dispatcher.api.browser_sessions import IDLE_SECONDS, BrowserSessions
from trainmaster_dispatcher.api.keyring import Keyring
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.tenants import hash_key

COOKIE = "trainmaster"


class Page:
    """The dispatcher's own page in a browser at the api's address, with its cookie."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.origin = str(http.base_url).rstrip("/")
        self.cookie = ""
        self.csrf = ""

    async def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        own = {"Cookie": f"{COOKIE}={self.cookie}"} if self.cookie else {}
        headers = own | {"Origin": self.origin, "Sec-Fetch-Site": "same-origin"} | options.pop("headers", {})
        return await self.http.request(method, path, headers=headers, **options)

    async def sign_in(self, key: str, **headers: str) -> httpx.Response:
        answer = await self.call("POST", "/v1/sign-in/key", json={"key": key}, headers=headers)
        if answer.status_code == 200:
            (line,) = answer.headers.get_list("set-cookie")
            parts = [one.strip() for one in line.split(";")]
            assert {one.lower() for one in parts[1:]} == {"httponly", "max-age=43200", "path=/", "samesite=lax"}
            assert parts[0].startswith(f"{COOKIE}=")
            assert answer.headers["cache-control"] == "no-store"
            self.cookie = parts[0].removeprefix(f"{COOKIE}=")
            self.csrf = answer.json()["csrfToken"]
        else:
            assert "set-cookie" not in answer.headers
        return answer

    async def whoami(self) -> httpx.Response:
        return await self.call("GET", "/v1/whoami")

    async def change(self, method: str, path: str, **options: Any) -> httpx.Response:
        return await self.call(method, path, headers={"X-Trainmaster-CSRF": self.csrf}, **options)


@pytest.fixture
async def page(service: Service) -> AsyncIterator[Page]:
    async with httpx.AsyncClient(base_url=service.url, timeout=30) as http:
        yield Page(http)


async def made_key(service: Service, **fields: Any) -> dict[str, Any]:
    spec = {"name": "ana", "role": "submitter", "queues": ["default"], **fields}
    answer = await service.http.post("/v1/keys", json=spec)
    assert answer.status_code == 201, answer.text
    value: dict[str, Any] = answer.json()
    return value


async def sessions_of(service: Service) -> int:
    return int((await rows(service.stores, "SELECT count(*) AS many FROM browser_sessions"))[0].many)


async def test_a_key_opens_its_own_calls_and_no_others(service: Service, page: Page) -> None:
    offered = (await page.http.get("/v1/sign-in")).json()
    assert (offered["key"], offered["browser"], offered["issuers"]) == (True, False, [])
    made = await made_key(service)
    answer = await page.sign_in(made["key"])
    assert answer.status_code == 200, answer.text
    assert (answer.json()["id"], answer.json()["name"], answer.json()["queues"]) == (made["id"], "ana", ["default"])
    found = (await page.whoami()).json()
    assert (found["name"], found["csrfToken"]) == ("ana", page.csrf)
    submitted = await page.change("POST", "/v1/jobs", json=job())
    assert submitted.status_code == 201, submitted.text
    assert (await service.job(submitted.json()["id"]))["submittedBy"] == "ana"
    refused = await page.change("POST", "/v1/keys", json={"name": "x", "role": "admin"})
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert (await page.call("GET", "/apis/trainmaster.io/v1/jobs")).status_code == 401, (
        "no cookie opens the Kubernetes API"
    )
    stored = await rows(service.stores, "SELECT hash, person_id FROM browser_sessions")
    assert [(bytes(one.hash), one.person_id) for one in stored] == [(hash_key(page.cookie), made["id"])]

    async def is_in_audit() -> bool:
        lines = (await service.http.get("/v1/audit", params={"actor": "ana"})).json()["audit"]
        return any((one["action"], one["details"]) == ("sign in", {"key": made["id"]}) for one in lines)

    await eventually(is_in_audit, 4)


async def test_changes_need_the_token_of_the_session(service: Service, page: Page) -> None:
    await page.sign_in(ADMIN_KEY)
    for headers in ({}, {"X-Trainmaster-CSRF": "x"}):
        answer = await page.call("POST", "/v1/jobs", json=job(), headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "csrf")
    foreign = {"X-Trainmaster-CSRF": page.csrf, "Origin": "http://127.0.0.1:1"}
    assert (await page.call("POST", "/v1/jobs", json=job(), headers=foreign)).json()["code"] == "csrf"
    assert (await page.call("POST", "/v1/sign-out", headers=foreign)).json()["code"] == "csrf"
    assert (await service.http.get("/v1/jobs")).json()["jobs"] == []


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example.com"},
        {"Origin": "null"},
        {"Origin": "http://localhost"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Host": "evil.example.com", "Origin": "http://evil.example.com"},
        {"Host": "evil.example.com:80", "Origin": "http://evil.example.com:80", "Sec-Fetch-Site": "same-origin"},
        {"Host": "127.0.0.1.evil.example.com", "Origin": "http://127.0.0.1.evil.example.com"},
    ],
)
async def test_a_page_of_another_host_signs_nobody_in(service: Service, page: Page, headers: dict[str, str]) -> None:
    answer = await page.sign_in(ADMIN_KEY, **headers)
    assert (answer.status_code, answer.json()["code"]) == (403, "csrf"), answer.text
    assert await sessions_of(service) == 0


@pytest.mark.parametrize(
    "media_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "text/json", ""]
)
async def test_a_form_signs_nobody_in(service: Service, page: Page, media_type: str) -> None:
    body = b'{"key": "%s"}' % ADMIN_KEY.encode()
    answer = await page.call("POST", "/v1/sign-in/key", content=body, headers={"Content-Type": media_type})
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported-media-type")
    assert await sessions_of(service) == 0


async def test_names_of_this_machine_are_hosts_of_the_page(service: Service, page: Page) -> None:
    port = page.origin.rpartition(":")[2]
    for host in (f"localhost:{port}", f"[::1]:{port}", f"tm.localhost:{port}", f"LOCALHOST:{port}"):
        answer = await page.sign_in(ADMIN_KEY, Host=host, Origin=f"http://{host}".lower())
        assert answer.status_code == 200, (host, answer.text)


async def test_a_program_without_origin_may_sign_in(service: Service, page: Page) -> None:
    answer = await page.http.post("/v1/sign-in/key", json={"key": ADMIN_KEY})
    assert answer.status_code == 200


@pytest.mark.parametrize("key", ["tmk_wrong", "tmk_private", "eyJhbGciOiJub25lIn0.e30.", "ä", " "])
async def test_a_key_that_does_not_count_or_is_of_an_agent_begins_no_session(
    service: Service, page: Page, key: str
) -> None:
    answer = await page.sign_in(key)
    expected = (403, "forbidden") if key == "tmk_private" else (401, "unauthenticated")
    assert (answer.status_code, answer.json()["code"]) == expected, answer.text
    assert key.strip() == "" or key not in answer.text
    assert await sessions_of(service) == 0


@pytest.mark.parametrize(
    "body", [{}, {"key": ""}, {"key": 5}, {"key": None}, {"key": "x" * 501}, {"key": "a", "more": 1}, []]
)
async def test_a_body_with_mistakes_begins_no_session(service: Service, page: Page, body: object) -> None:
    answer = await page.call("POST", "/v1/sign-in/key", json=body)
    assert answer.status_code == 422, answer.text
    for headers in ({"Idempotency-Key": "a"},):
        answer = await page.call("POST", "/v1/sign-in/key", json={"key": ADMIN_KEY}, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid-parameter")
    assert await sessions_of(service) == 0


async def test_each_sign_in_has_a_new_secret_and_ends_the_session_before(service: Service, page: Page) -> None:
    page.cookie = "chosen-by-an-attacker"
    await page.sign_in(ADMIN_KEY)
    first = page.cookie
    assert first != "chosen-by-an-attacker"
    await page.sign_in(ADMIN_KEY)
    assert page.cookie != first
    assert await sessions_of(service) == 1
    page.cookie = first
    assert (await page.whoami()).status_code == 401
    page.cookie = "chosen-by-an-attacker"
    assert (await page.whoami()).status_code == 401


async def test_sign_out_ends_the_session(service: Service, page: Page) -> None:
    await page.sign_in(ADMIN_KEY)
    answer = await page.change("POST", "/v1/sign-out")
    assert answer.status_code == 204
    assert "max-age=0" in answer.headers["set-cookie"].lower()
    assert (await page.whoami()).status_code == 401
    assert await sessions_of(service) == 0
    assert (await service.http.get("/v1/whoami")).status_code == 200, "the key itself counts as before"


async def test_a_key_that_is_revoked_or_rotated_ends_its_sessions(service: Service, page: Page) -> None:
    for action in ("revoke", "rotate"):
        made = await made_key(service, name=f"to {action}")
        assert (await page.sign_in(made["key"])).status_code == 200
        if action == "revoke":
            answer = await service.http.delete(f"/v1/keys/{made['id']}")
        else:
            answer = await service.http.post(f"/v1/keys/{made['id']}/rotate", json={"overlap": "0s"})
        assert answer.status_code in (200, 201, 204), answer.text

        async def has_ended() -> bool:
            return (await page.whoami()).status_code == 401

        await eventually(has_ended, 2)
        assert "was revoked or has expired" in (await page.whoami()).json()["detail"] or await sessions_of(service) == 0


async def test_a_session_does_not_outlive_its_key(service: Service, page: Page) -> None:
    made = await made_key(service, expiresIn="2s")
    assert (await page.sign_in(made["key"])).status_code == 200
    (row,) = await rows(
        service.stores,
        "SELECT extract(epoch FROM s.ends_at - k.expires_at)::float8 AS more FROM browser_sessions s"
        " JOIN api_keys k ON k.id = s.person_id",
    )
    assert abs(row.more) < 0.5

    async def has_ended() -> bool:
        return (await page.whoami()).status_code == 401

    await eventually(has_ended, 4)


async def test_a_session_of_a_key_ends_when_it_is_idle(service: Service) -> None:
    clock, stores = Time(), Stores.open(service.settings)
    try:
        keyring = Keyring(stores)
        sessions = BrowserSessions(stores, keyring, None, (), now=clock, clock=clock)
        caller = await keyring.caller(ADMIN_KEY)
        assert caller is not None
        secret = await sessions.begin_by_key(caller, "")
        clock.now += IDLE_SECONDS - 1
        assert (await sessions.caller(secret)).key_id == caller.key_id
        clock.now += IDLE_SECONDS
        with pytest.raises(ProblemError) as refused:
            await sessions.caller(secret)
        assert refused.value.code is Code.UNAUTHENTICATED
    finally:
        await stores.close()


class TestWrongKeys:
    """Guesses at this call and in the header are counted together."""

    @pytest.fixture
    def more_settings(self) -> dict[str, Any]:
        return {"wrong_keys_per_second": 0.01, "wrong_keys_burst": 4}

    async def test_guesses_are_bounded(self, service: Service, page: Page) -> None:
        for number in range(2):
            assert (await page.sign_in(f"tmk_guess{number}")).status_code == 401
            wrong = await page.http.get("/v1/whoami", headers={"Authorization": f"Bearer tmk_other{number}"})
            assert wrong.status_code == 401
        answer = await page.sign_in("tmk_guess9")
        assert (answer.status_code, answer.json()["code"]) == (429, "too-many-requests")
        assert int(answer.headers["retry-after"]) > 0
        assert (await page.sign_in(ADMIN_KEY)).status_code == 200, "a key that counts is taken all the same"


class TestPublicUrl:
    """Where the address of browsers is set, it alone counts, whatever Host says."""

    @pytest.fixture
    def more_settings(self) -> dict[str, Any]:
        return {"public_url": "https://trainmaster.test"}

    async def test_the_origin_and_the_cookie_are_those_of_the_public_address(
        self, service: Service, page: Page
    ) -> None:
        answer = await page.sign_in(ADMIN_KEY)
        assert (answer.status_code, answer.json()["code"]) == (403, "csrf")
        own = {"Host": "trainmaster.test", "Origin": "https://trainmaster.test"}
        taken = await page.http.post("/v1/sign-in/key", json={"key": ADMIN_KEY}, headers=own)
        assert taken.status_code == 200, taken.text
        line = taken.headers["set-cookie"]
        assert line.startswith("__Host-trainmaster=")
        assert "; Secure" in line


class TestBehindAProxy:
    """A trusted proxy says that browsers reach it over TLS."""

    @pytest.fixture
    def more_settings(self) -> dict[str, Any]:
        return {"trusted_proxies": "127.0.0.1"}

    async def test_its_scheme_is_that_of_the_page(self, service: Service, page: Page) -> None:
        host = page.origin.removeprefix("http://")
        over_tls = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "192.0.2.7"}
        foreign = await page.sign_in(ADMIN_KEY, **over_tls)
        assert foreign.json()["code"] == "csrf", "the page is one of http"
        own = over_tls | {"Origin": f"https://{host}"}
        taken = await page.http.post("/v1/sign-in/key", json={"key": ADMIN_KEY}, headers=own)
        assert taken.status_code == 200, taken.text
        assert taken.headers["set-cookie"].startswith("__Host-trainmaster=")
