"""People who sign in with accounts of an OpenID Connect issuer: which of its tokens count, and what role bindings let them do."""

import asyncio
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from typing import Any

import httpx
import jwt
import orjson
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from tests.conftest import Service, job
from tests.integration.rows import rows
from tests.oidc_issuer import CLIENT_ID, ServedIssuer, make_key, running_issuer
from tests.waiting import eventually
from trainmaster_dispatcher.api import issuer_keys

_TIMES = ("exp", "nbf", "iat")
BINDING = {"name": "vision", "groups": ["vision"], "role": "user", "queues": ["default"]}


@pytest.fixture
def issuer() -> Iterator[ServedIssuer]:
    with running_issuer() as served:
        yield served


@pytest.fixture
def more_settings(issuer: ServedIssuer, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(issuer_keys, "_PAUSE_SECONDS", 0.0)
    return {"oidc_issuer": issuer.url, "oidc_client_ids": f"{CLIENT_ID}, other-client"}


@pytest.fixture
async def bound(service: Service) -> Service:
    """A dispatcher where the group vision may use the queue default."""
    await bind(service, BINDING)
    return service


async def bind(service: Service, spec: dict[str, Any]) -> None:
    answer = await service.http.put(f"/v1/role-bindings/{spec['name']}", json=spec)
    assert answer.status_code in (200, 201), answer.text


async def whoami(service: Service, token: str) -> httpx.Response:
    async with service.as_key(token) as http:
        return await http.get("/v1/whoami")


async def refusal(service: Service, token: str) -> str:
    """Return why a token is refused, once it was refused with 401."""
    answer = await whoami(service, token)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated"), answer.text
    return str(answer.json()["detail"])


async def test_everybody_may_see_how_to_sign_in(service: Service, issuer: ServedIssuer) -> None:
    async with httpx.AsyncClient(base_url=service.url) as nobody:
        first = {"issuer": issuer.url, "clientId": CLIENT_ID}
        found = (await nobody.get("/v1/sign-in")).json()
        assert found == first | {"issuers": [first | {"name": "default"}], "browser": False, "key": True}


async def test_a_person_has_the_rights_of_the_bindings_of_name_and_groups(bound: Service, issuer: ServedIssuer) -> None:
    for path in ("a", "b"):
        await bound.http.put(f"/v1/queues/{path}", json={"path": path})
    await bind(bound, {"name": "ana", "users": ["ana@example.com"], "role": "user", "queues": ["b", "a"]})

    async def has_both() -> bool:
        return bool((await whoami(bound, issuer.token())).json()["queues"] == ["a", "b", "default"])

    await eventually(has_both, 4)
    found = (await whoami(bound, issuer.token())).json()
    assert (found["name"], found["role"]) == ("ana@example.com", "user")
    assert (found["issuer"], found["groups"]) == (issuer.url, ["vision"])
    assert found["expiresAt"] is not None
    other = (await whoami(bound, issuer.token(sub="1002", email="bo@example.com"))).json()
    assert other["queues"] == ["default"]
    await bind(bound, {"name": "admins", "users": ["ana@example.com"], "role": "admin"})

    async def is_admin() -> bool:
        return bool((await whoami(bound, issuer.token())).json()["role"] == "admin")

    await eventually(is_admin, 4)


async def test_an_owner_by_binding_looks_after_clusters(bound: Service, issuer: ServedIssuer) -> None:
    await bind(bound, {"name": "edge", "users": ["ed@example.com"], "role": "owner", "clusters": ["edge"]})
    token = issuer.token(sub="7", email="ed@example.com", groups=[])
    assert (await whoami(bound, token)).json()["clusters"] == ["edge"]
    async with bound.as_key(token) as ed:
        assert (await ed.post("/v1/clusters/edge/cordon")).status_code == 200
        refused = await ed.post("/v1/clusters/private/cordon")
        assert (refused.status_code, "the user 'ed@example.com'" in refused.text) == (403, True)


async def test_jobs_and_the_audit_have_the_name_of_the_person(bound: Service, issuer: ServedIssuer) -> None:
    async with bound.as_key(issuer.token()) as ana:
        submitted = await ana.post("/v1/jobs", json=job())
        assert submitted.status_code == 201, submitted.text
        job_id = submitted.json()["id"]
        assert (await ana.post(f"/v1/jobs/{job_id}/cancel")).status_code == 200
    assert (await bound.job(job_id))["submittedBy"] == "ana@example.com"
    listed = (await bound.http.get("/v1/keys")).json()["keys"]
    person = next(one for one in listed if one["issuer"] == issuer.url)
    assert (person["name"], person["role"], person["queues"], person["groups"], person["hint"]) == (
        "ana@example.com",
        "user",
        ["default"],
        ["vision"],
        "",
    )
    refused = await bound.as_key(issuer.token()).put("/v1/queues/x", json={"path": "x"})
    assert refused.status_code == 403

    async def is_in_audit() -> bool:
        lines = (await bound.http.get("/v1/audit", params={"actor": "ana@example.com"})).json()["audit"]
        return bool(lines)

    await eventually(is_in_audit, 4)


async def test_tokens_of_one_person_are_one_row_and_calls_cost_no_query(
    bound: Service, issuer: ServedIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = issuer.token(), issuer.token(groups=["vision", "more"])
    for token in (first, second, first):
        assert (await whoami(bound, token)).status_code == 200
    found = await rows(bound.stores, "SELECT name, groups FROM api_keys WHERE issuer IS NOT NULL")
    assert [tuple(row) for row in found] == [("ana@example.com", ["vision", "more"])]
    reads = issuer.reads
    for _ in range(5):
        assert (await whoami(bound, first)).status_code == 200
    assert issuer.reads == reads


def _from_now(claims: dict[str, Any]) -> dict[str, Any]:
    """Return claims with times of which the test gives the distance from now, in seconds."""
    now = int(time.time())
    return {
        name: now + value if isinstance(value, int) else value for name, value in claims.items() if name in _TIMES
    } | {name: value for name, value in claims.items() if name not in _TIMES}


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"exp": -3600}, "has expired"),
        ({"nbf": 3600}, "not valid yet"),
        ({"iat": 3600}, "not valid yet"),
        ({"aud": "somebody-else"}, "is for another client"),
        ({"aud": None}, "has no claim aud"),
        ({"exp": None}, "has no claim exp"),
        ({"iat": None}, "has no claim iat"),
        ({"sub": None}, "has no claim sub"),
        ({"sub": ""}, "has no claim sub"),
        ({"iss": "https://elsewhere.example.com"}, "is of the issuer 'https://elsewhere.example.com'"),
        ({"iss": None}, "is of the issuer None"),
        ({"email": None}, "names no user: it has none of the claims email, preferred_username"),
        ({"email": ["ana@example.com"]}, "has a claim email that is no user's name"),
        ({"email": "ana\n@example.com"}, "has a claim email that is no user's name"),
        ({"email_verified": False}, "has an e-mail address that the issuer has not verified"),
        ({"email": None, "preferred_username": "ana@example.com"}, "it could be another user's email"),
        ({"groups": {"vision": True}}, "has a claim groups that is no list of names"),
        ({"groups": ["vision", 1]}, "has a claim groups that is no list of names"),
        ({"groups": ["v" * 20_000]}, "may have 16384"),
    ],
)
async def test_tokens_with_wrong_claims_are_refused(
    bound: Service, issuer: ServedIssuer, claims: dict[str, Any], why: str
) -> None:
    assert why in await refusal(bound, issuer.token(**_from_now(claims)))


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": ["x", "other-client"]},
        {"exp": -5},
        {"nbf": 30},
        {"groups": "vision"},
        {"email": None, "preferred_username": "ana"},
        {"email_verified": True},
    ],
)
async def test_tokens_within_what_is_allowed_count(
    bound: Service, issuer: ServedIssuer, claims: dict[str, Any]
) -> None:
    assert (await whoami(bound, issuer.token(**_from_now(claims)))).status_code == 200


def _unsigned(token: str, header: dict[str, Any], signature: str = "") -> str:
    head = urlsafe_b64encode(orjson.dumps(header)).decode().rstrip("=")
    return f"{head}.{token.split('.')[1]}.{signature}"


async def test_only_signatures_of_key_pairs_of_the_issuer_count(bound: Service, issuer: ServedIssuer) -> None:
    good = issuer.token()
    assert "is signed by 'none'" in await refusal(bound, _unsigned(good, {"alg": "none"}))
    public = (
        issuer.keys["first"]
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    # PyJWT refuses to sign with such a secret, so the token is made by hand.
    hmac = jwt.get_algorithm_by_name("HS256")
    head = _unsigned(good, {"alg": "HS256", "kid": "first"}).rstrip(".")
    signature = urlsafe_b64encode(hmac.sign(head.encode(), public)).decode().rstrip("=")
    assert "is signed by 'HS256'" in await refusal(bound, f"{head}.{signature}")
    assert "has a signature that is wrong" in await refusal(bound, issuer.token(make_key()))
    changed = good.split(".")
    changed[1] = issuer.token(email="bo@example.com").split(".")[1]
    assert "has a signature that is wrong" in await refusal(bound, ".".join(changed))
    for text in ("eyJ.x", "eyJhbGciOiJSUzI1NiJ9..", "eyJhbGciOiJSUzI1NiJ9.a.b.c.d", f"{good}x" * 2):
        assert "the token" in await refusal(bound, text)


async def test_keys_of_other_kinds_sign_as_well(bound: Service, issuer: ServedIssuer) -> None:
    issuer.keys |= {"curve": ec.generate_private_key(ec.SECP256R1()), "edwards": ed25519.Ed25519PrivateKey.generate()}
    for kid in ("curve", "edwards"):
        issuer.signs_with = kid
        assert (await whoami(bound, issuer.token())).status_code == 200, kid
    issuer.signs_with = "first"
    assert (await whoami(bound, issuer.token(header={"alg": "PS384"}))).status_code == 200
    assert "which" in await refusal(bound, issuer.token(header={"kid": "curve"})), "a key of another kind"


async def test_keys_that_are_too_short_do_not_count(bound: Service, issuer: ServedIssuer) -> None:
    issuer.keys["short"] = make_key(1024)
    issuer.signs_with = "short"
    assert "does not publish" in await refusal(bound, issuer.token())


async def test_a_rotated_key_counts_and_one_that_is_gone_does_not(bound: Service, issuer: ServedIssuer) -> None:
    old = issuer.token()
    assert (await whoami(bound, old)).status_code == 200
    issuer.keys, issuer.signs_with = {"second": make_key()}, "second"
    assert (await whoami(bound, issuer.token())).status_code == 200
    assert "the key 'first'" in await refusal(bound, old)


async def test_many_unknown_keys_cause_few_reads(
    bound: Service, issuer: ServedIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await whoami(bound, issuer.token())).status_code == 200
    monkeypatch.setattr(issuer_keys, "_PAUSE_SECONDS", 1.0)
    reads = issuer.reads
    tokens = [issuer.token(header={"kid": f"key-{number}"}) for number in range(20)]
    refusals = await asyncio.gather(*(refusal(bound, token) for token in tokens))
    assert all("does not publish" in one for one in refusals)
    assert issuer.reads == reads + 1, "they waited for the same read"


async def test_a_key_that_is_new_right_after_a_read_is_waited_for(
    bound: Service, issuer: ServedIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuer_keys, "_PAUSE_SECONDS", 1.0)
    assert (await whoami(bound, issuer.token())).status_code == 200
    for name in ("second", "third"):
        issuer.keys, issuer.signs_with = {name: make_key()}, name
        assert (await whoami(bound, issuer.token())).status_code == 200


async def test_while_the_issuer_is_silent_known_keys_go_on(
    bound: Service, issuer: ServedIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuer_keys, "_READ_SECONDS", 0.3)
    assert (await whoami(bound, issuer.token())).status_code == 200
    issuer.answers.clear()
    assert (await whoami(bound, issuer.token(sub="1002", email="bo@example.com"))).status_code == 200
    waits = await whoami(bound, issuer.token(header={"kid": "unknown"}))
    assert (waits.status_code, waits.json()["code"]) == (503, "issuer-away")
    assert "does not answer in time" in waits.json()["detail"]
    assert (await bound.http.get("/v1/whoami")).status_code == 200
    issuer.answers.set()
    assert "does not publish" in await refusal(bound, issuer.token(header={"kid": "unknown"}))


async def test_who_is_not_bound_is_told_what_an_admin_has_to_do(bound: Service, issuer: ServedIssuer) -> None:
    answer = await whoami(bound, issuer.token(groups=["nlp", "all"]))
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert "no role binding names the user 'ana@example.com', who is in the groups nlp, all" in answer.json()["detail"]
    assert await rows(bound.stores, "SELECT 1 FROM api_keys WHERE issuer IS NOT NULL") == []


async def test_a_binding_that_is_removed_ends_rights_and_streams_at_once(bound: Service, issuer: ServedIssuer) -> None:
    token = issuer.token()
    async with bound.as_key(token) as ana:
        assert (await ana.get("/v1/jobs")).status_code == 200
        async with ana.stream("GET", "/v1/events", headers={"Accept": "text/event-stream"}) as stream:
            assert stream.status_code == 200
            assert (await bound.http.delete("/v1/role-bindings/vision")).status_code == 204

            async def is_refused() -> bool:
                return (await ana.get("/v1/jobs")).status_code == 403

            await eventually(is_refused, 4)
            async for _ in stream.aiter_raw():
                pass  # the end of the stream


async def test_a_person_who_was_revoked_is_locked_out(bound: Service, issuer: ServedIssuer) -> None:
    assert (await whoami(bound, issuer.token())).status_code == 200
    number = (await whoami(bound, issuer.token())).json()["id"]
    assert (await bound.http.delete(f"/v1/keys/{number}")).status_code == 204

    async def is_refused() -> bool:
        return (await whoami(bound, issuer.token())).status_code == 401

    await eventually(is_refused, 4)
    assert "an admin has locked out the account" in await refusal(bound, issuer.token(email="other@example.com"))
    assert (await bound.http.post(f"/v1/keys/{number}/restore")).status_code == 204

    async def is_let_in() -> bool:
        return (await whoami(bound, issuer.token())).status_code == 200

    await eventually(is_let_in, 4)


async def test_a_person_is_not_restored_while_another_one_has_the_name(bound: Service, issuer: ServedIssuer) -> None:
    number = (await whoami(bound, issuer.token())).json()["id"]
    await bound.http.delete(f"/v1/keys/{number}")
    named = {"name": "ana@example.com", "role": "user", "queues": ["default"]}
    key = (await bound.http.post("/v1/keys", json=named)).json()["id"]
    refused = await bound.http.post(f"/v1/keys/{number}/restore")
    assert (refused.status_code, f"revoke key {key} first" in refused.text) == (409, True)
    await bound.http.delete(f"/v1/keys/{key}")
    refused = await bound.http.post(f"/v1/keys/{key}/restore")
    assert (refused.status_code, "an API key that was revoked stays so" in refused.text) == (404, True)


async def test_no_person_takes_the_name_of_a_key_or_of_another_person(bound: Service, issuer: ServedIssuer) -> None:
    made = await bound.http.post("/v1/keys", json={"name": "ana@example.com", "role": "user", "queues": ["default"]})
    answer = await whoami(bound, issuer.token())
    assert (answer.status_code, f"number {made.json()['id']}" in answer.text) == (403, True)
    await bound.http.delete(f"/v1/keys/{made.json()['id']}")
    assert (await whoami(bound, issuer.token())).status_code == 200
    thief = await whoami(bound, issuer.token(sub="9"))
    assert (thief.status_code, "of another account" in thief.text) == (403, True)
    again = await bound.http.post("/v1/keys", json={"name": "ana@example.com", "role": "user", "queues": ["default"]})
    assert again.status_code == 409


async def test_users_see_the_bindings_that_name_them_alone(bound: Service, issuer: ServedIssuer) -> None:
    await bind(bound, {"name": "nlp", "groups": ["nlp"], "role": "admin"})
    async with bound.as_key(issuer.token()) as ana:
        shown = (await ana.get("/v1/role-bindings")).json()["roleBindings"]
        assert [one["name"] for one in shown] == ["vision"]
        assert (await ana.get("/v1/role-bindings/nlp")).status_code == 404
        refused = await ana.put("/v1/role-bindings/vision", json=BINDING | {"role": "admin", "queues": []})
        assert refused.status_code == 403


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"groups": []}, "needs at least one name in users or in groups"),
        ({"queues": []}, "the role user needs at least one name in queues"),
        ({"role": "admin"}, "the role admin is for no queues"),
        ({"role": "owner", "queues": []}, "the role owner needs at least one name in clusters"),
        ({"role": "agent"}, "role"),
        ({"queues": ["defualt"]}, "there is no queue 'defualt'; did you mean 'default'?"),
        ({"role": "owner", "queues": [], "clusters": ["edgy"]}, "there is no cluster 'edgy'"),
    ],
)
async def test_bindings_that_can_mean_nothing_are_refused(
    service: Service, issuer: ServedIssuer, change: dict[str, Any], why: str
) -> None:
    answer = await service.http.put("/v1/role-bindings/vision", json=BINDING | change)
    assert (answer.status_code, why in answer.text) == (422, True), answer.text


async def test_the_kubernetes_api_takes_tokens_and_says_who_the_caller_is(bound: Service, issuer: ServedIssuer) -> None:
    async with bound.as_key(issuer.token()) as ana:
        assert (await ana.get("/apis/trainmaster.dev/v1/namespaces/default/jobs")).status_code == 200
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        answer = await ana.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", json=review)
        assert answer.json()["status"]["userInfo"] == {
            "username": "ana@example.com",
            "groups": ["vision", "trainmaster:user", "system:authenticated"],
        }
    async with bound.as_key(issuer.token(groups=[])) as nobody:
        refused = await nobody.get("/apis/trainmaster.dev/v1/namespaces/default/jobs")
        assert (refused.status_code, refused.json()["kind"]) == (403, "Status")
        assert "no role binding names the user" in refused.json()["message"]


async def test_the_address_for_mail_is_the_one_that_the_issuer_has_verified(
    bound: Service, issuer: ServedIssuer
) -> None:
    async def address(token: str) -> Any:
        async with bound.as_key(token) as person:
            answer = await person.get("/v1/notices")
            assert answer.status_code == 200, answer.text
            return answer.json()["address"]

    assert await address(issuer.token(email_verified=True)) == "ana@example.com"
    person = next(one for one in (await bound.http.get("/v1/keys")).json()["keys"] if one["issuer"])
    refused = await bound.http.post(f"/v1/keys/{person['id']}/email", json={"email": "victim@example.org"})
    assert (refused.status_code, refused.json()["code"]) == (404, "not-found")
    assert await address(issuer.token(email_verified=True)) == "ana@example.com"
    # Another token of the same person with another address, which counts from then on.
    assert await address(issuer.token(email="ana@example.org", email_verified=True)) == "ana@example.org"
