"""Several OpenID Connect issuers: each token is checked by its own issuer alone, and no two issuers can name the same person."""

import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives import serialization

from tests.conftest import Service
from tests.integration.rows import rows
from tests.integration.test_oidc import BINDING, bind, refusal, whoami
from tests.oidc_issuer import CLIENT_ID, ServedIssuer, make_key, running_issuer
from tests.waiting import eventually
from trainmaster_dispatcher.api import issuer_keys

AUDIENCE = "https://trainmaster.example.com"
CLUSTER = "https://kubernetes.default.svc.cluster.local"
RUNNER = "system:serviceaccount:ci:runner"


@pytest.fixture
def company() -> Iterator[ServedIssuer]:
    """The issuer that the settings name."""
    with running_issuer() as served:
        yield served


@pytest.fixture
def partner() -> Iterator[ServedIssuer]:
    """An issuer of the file, whose key has the same id as that of the other one."""
    with running_issuer() as served:
        yield served


@pytest.fixture
def cluster() -> ServedIssuer:
    """A Kubernetes cluster, which nobody can reach: it signs tokens."""
    return ServedIssuer(CLUSTER, {"k1": make_key()}, "k1")


@pytest.fixture
def jwks_file(cluster: ServedIssuer, tmp_path: Path) -> Path:
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps(cluster.jwks()))
    return path


@pytest.fixture
def more_settings(
    company: ServedIssuer, partner: ServedIssuer, jwks_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    monkeypatch.setattr(issuer_keys, "_PAUSE_SECONDS", 0.0)
    file = tmp_path / "issuers.yaml"
    issuers = [
        {
            "name": "partner",
            "issuer": partner.url,
            "clientIds": [CLIENT_ID],
            "prefix": "partner:",
            "userClaims": ["preferred_username"],
            "groupsClaim": "roles",
            "scopes": ["openid", "roles"],
            "algorithms": ["RS256"],
        },
        {
            "name": "edge",
            "issuer": CLUSTER,
            "serviceAccounts": True,
            "audiences": [AUDIENCE],
            "prefix": "edge:",
            "jwksFile": str(jwks_file),
        },
    ]
    file.write_text(json.dumps({"issuers": issuers}))
    return {"oidc_issuer": company.url, "oidc_client_ids": CLIENT_ID, "oidc_issuers_file": str(file)}


@pytest.fixture
async def bound(service: Service) -> Service:
    """A dispatcher where the group vision of each issuer, and service accounts of a namespace, may use the queue default."""
    groups = ["vision", "partner:vision", "edge:system:serviceaccounts:ci"]
    await bind(service, BINDING | {"groups": groups})
    return service


def of_company(company: ServedIssuer, **claims: Any) -> str:
    return company.token(**claims)


def of_partner(partner: ServedIssuer, **claims: Any) -> str:
    return partner.token(**{"email": None, "groups": None, "preferred_username": "ana", "roles": ["vision"], **claims})


def of_runner(cluster: ServedIssuer, **claims: Any) -> str:
    """Return a token as the TokenRequest API makes it."""
    account = {"namespace": "ci", "serviceaccount": {"name": "runner", "uid": "1"}}
    given = {"email": None, "groups": None, "sub": RUNNER, "aud": [AUDIENCE], "kubernetes.io": account}
    return cluster.token(**{**given, **claims})


async def test_the_sign_in_names_the_issuers_of_people(
    service: Service, company: ServedIssuer, partner: ServedIssuer
) -> None:
    async with httpx.AsyncClient(base_url=service.url) as nobody:
        found = (await nobody.get("/v1/sign-in")).json()
    assert (found["issuer"], found["clientId"]) == (company.url, CLIENT_ID)
    assert found["issuers"] == [
        {"name": "default", "issuer": company.url, "clientId": CLIENT_ID},
        {"name": "partner", "issuer": partner.url, "clientId": CLIENT_ID, "scopes": ["openid", "roles"]},
    ]


async def test_people_of_two_issuers_have_names_of_their_own(
    bound: Service, company: ServedIssuer, partner: ServedIssuer
) -> None:
    ours = (await whoami(bound, of_company(company, email=None, preferred_username="ana"))).json()
    theirs = (await whoami(bound, of_partner(partner))).json()
    assert (ours["name"], ours["groups"], ours["issuer"]) == ("ana", ["vision"], company.url)
    assert (theirs["name"], theirs["groups"], theirs["issuer"]) == ("partner:ana", ["partner:vision"], partner.url)
    assert ours["id"] != theirs["id"]
    found = await rows(
        bound.stores, "SELECT issuer, subject, name FROM api_keys WHERE issuer IS NOT NULL ORDER BY name"
    )
    assert [tuple(row) for row in found] == [(company.url, "1001", "ana"), (partner.url, "1001", "partner:ana")]


async def test_no_binding_of_one_issuer_counts_for_another(bound: Service, partner: ServedIssuer) -> None:
    await bind(bound, {"name": "admins", "users": ["ana"], "groups": ["admins"], "role": "admin"})
    found = (await whoami(bound, of_partner(partner, roles=["vision", "admins"]))).json()
    assert (found["role"], found["queues"]) == ("user", ["default"])


async def test_the_first_issuer_cannot_name_people_and_groups_of_another(bound: Service, company: ServedIssuer) -> None:
    for name in ("partner:ana", f"edge:{RUNNER}", "partner:"):
        why = await refusal(bound, of_company(company, email=name))
        assert "begins as those of another issuer do" in why
    found = (await whoami(bound, of_company(company, groups=["vision", "partner:vision", "edge:x"]))).json()
    assert found["groups"] == ["vision"]
    none = await whoami(bound, of_company(company, groups=["partner:vision"]))
    assert (none.status_code, none.json()["code"]) == (403, "forbidden")


def _with_secret(public: bytes, token: str) -> str:
    """Return a token that is signed with a public key as if it were a secret, which PyJWT refuses to do."""
    head = urlsafe_b64encode(json.dumps({"alg": "HS256", "kid": "first"}).encode()).decode().rstrip("=")
    signed = f"{head}.{token.split('.')[1]}"
    signature = jwt.get_algorithm_by_name("HS256").sign(signed.encode(), public)
    return f"{signed}.{urlsafe_b64encode(signature).decode().rstrip('=')}"


def _pem(issuer: ServedIssuer) -> bytes:
    public = issuer.keys[issuer.signs_with].public_key()
    return public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _unsigned(token: str) -> str:
    head = urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=")
    return f"{head}.{token.split('.')[1]}."


Attack = Callable[[Callable[..., str], ServedIssuer, ServedIssuer], str]
"""Makes a token: by tokens of an issuer, of this issuer, and of another one that is trusted, too."""
NOW = int(time.time())
ATTACKS: dict[str, tuple[Attack, str]] = {
    "expired": (lambda make, own, _: make(own, exp=NOW - 3600), "has expired"),
    "too early": (lambda make, own, _: make(own, nbf=NOW + 36_000), "not valid yet"),
    "another audience": (lambda make, own, _: make(own, aud=["api"]), "is for another client"),
    "no audience": (lambda make, own, _: make(own, aud=None), "has no claim aud"),
    "an issuer that nobody trusts": (
        lambda make, own, _: make(own, iss="https://evil.example.com"),
        "is of the issuer",
    ),
    "an address that only begins like one": (lambda make, own, _: make(own, iss=f"{own.url}/"), "is of the issuer"),
    "no issuer": (lambda make, own, _: make(own, iss=None), "is of the issuer None"),
    "no signature": (lambda make, own, _: _unsigned(make(own)), "is signed by 'none'"),
    "HS256 with the public key": (lambda make, own, _: _with_secret(_pem(own), make(own)), "is signed by 'HS256'"),
    "signed by the other issuer": (
        lambda make, own, other: make(own, key=other.keys[other.signs_with], header={"kid": own.signs_with}),
        "has a signature that is wrong",
    ),
    "a key of the other issuer by its id": (
        lambda make, own, other: make(own, key=other.keys["own"], header={"kid": "own"}),
        "does not publish",
    ),
    "addresses of keys in its header": (
        lambda make, own, other: make(own, key=other.keys["own"], header={"kid": "own", "jku": f"{other.url}/keys"}),
        "does not publish",
    ),
}


@pytest.mark.parametrize("of", ["company", "partner", "edge"])
async def test_hostile_tokens_are_refused_for_each_issuer(
    bound: Service, company: ServedIssuer, partner: ServedIssuer, cluster: ServedIssuer, of: str
) -> None:
    cases: dict[str, tuple[ServedIssuer, ServedIssuer, Callable[..., str]]] = {
        "company": (company, partner, of_company),
        "partner": (partner, company, of_partner),
        "edge": (cluster, partner, of_runner),
    }
    own, other, make = cases[of]
    other.keys["own"] = make_key()
    assert (await whoami(bound, make(own))).status_code == 200, "the same token without an attack counts"
    for attack, (token, why) in ATTACKS.items():
        assert why in await refusal(bound, token(make, own, other)), attack
    found = await rows(bound.stores, "SELECT count(*) AS many FROM api_keys WHERE issuer IS NOT NULL")
    assert found[0].many == 1, "nobody else got a row"


async def test_algorithms_are_those_of_the_issuer(bound: Service, company: ServedIssuer, partner: ServedIssuer) -> None:
    assert (await whoami(bound, of_company(company, header={"alg": "RS512"}))).status_code == 200
    assert "may be by RS256" in await refusal(bound, of_partner(partner, header={"alg": "RS512"}))


async def test_keys_rotate_for_each_issuer_by_itself(
    bound: Service, company: ServedIssuer, partner: ServedIssuer
) -> None:
    ours, theirs = of_company(company), of_partner(partner)
    for token in (ours, theirs):
        assert (await whoami(bound, token)).status_code == 200
    reads = company.reads
    partner.keys, partner.signs_with = {"second": make_key()}, "second"
    assert (await whoami(bound, of_partner(partner))).status_code == 200
    assert "the key 'first'" in await refusal(bound, theirs)
    assert (await whoami(bound, ours)).status_code == 200
    assert company.reads == reads


async def test_an_issuer_that_is_silent_does_not_delay_the_others(
    bound: Service, company: ServedIssuer, partner: ServedIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuer_keys, "_READ_SECONDS", 1.0)
    assert (await whoami(bound, of_partner(partner))).status_code == 200
    partner.answers.clear()
    waits = await whoami(bound, of_partner(partner, header={"kid": "new"}))
    assert (waits.status_code, waits.json()["code"], partner.url in waits.text) == (503, "issuer-away", True)
    company.keys["second"] = make_key()
    company.signs_with = "second"
    began = time.monotonic()
    assert (await whoami(bound, of_company(company))).status_code == 200
    assert time.monotonic() - began < 1.0, "its keys were read while the other one was silent"
    assert (await whoami(bound, of_partner(partner, sub="2", preferred_username="bo"))).status_code == 200


async def test_nothing_is_fetched_of_an_issuer_that_a_token_names(bound: Service, company: ServedIssuer) -> None:
    calls: list[str] = []
    with running_issuer() as stranger:
        stranger.discovery = lambda: calls.append("discovery") or {}  # type: ignore[method-assign,func-returns-value]
        for _ in range(3):
            assert f"not of {company.url} or " in await refusal(bound, stranger.token())
        assert "does not publish" in await refusal(bound, company.token(header={"kid": "x", "jku": stranger.url}))
        assert (calls, stranger.reads) == ([], 0)


async def test_a_service_account_is_a_person_with_the_prefix_of_its_cluster(
    bound: Service, cluster: ServedIssuer
) -> None:
    found = (await whoami(bound, of_runner(cluster))).json()
    assert (found["name"], found["issuer"]) == (f"edge:{RUNNER}", CLUSTER)
    assert found["groups"] == ["edge:system:serviceaccounts", "edge:system:serviceaccounts:ci"]
    assert found["queues"] == ["default"]
    elsewhere = await whoami(bound, of_runner(cluster, sub="system:serviceaccount:web:runner"))
    assert (elsewhere.status_code, f"'edge:{RUNNER.replace('ci', 'web')}'" in elsewhere.text) == (403, True)
    number = found["id"]
    assert (await bound.http.delete(f"/v1/keys/{number}")).status_code == 204

    async def is_locked_out() -> bool:
        return (await whoami(bound, of_runner(cluster))).status_code == 401

    await eventually(is_locked_out, 4)


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"sub": "ana@example.com"}, "which is no service account"),
        ({"sub": "system:serviceaccount:ci"}, "which is no service account"),
        ({"sub": "system:serviceaccount:ci:runner:admin"}, "which is no service account"),
        ({"sub": "system:serviceaccount:ci:runner\n"}, "which is no service account"),
        ({"sub": "system:serviceaccount:CI:runner"}, "which is no service account"),
        ({"sub": "system:node:n1"}, "which is no service account"),
        ({"sub": f"system:serviceaccount:ci:{'r' * 80}"}, "a name has up to 100 characters"),
        ({"aud": [CLUSTER]}, "is for another client"),
        ({"exp": NOW - 3600}, "Kubernetes writes a new one into the file"),
    ],
)
async def test_tokens_of_a_cluster_that_are_of_no_service_account_for_here_are_refused(
    bound: Service, cluster: ServedIssuer, claims: dict[str, Any], why: str
) -> None:
    assert why in await refusal(bound, of_runner(cluster, **claims))


async def test_claims_of_people_in_a_token_of_a_cluster_say_nothing(bound: Service, cluster: ServedIssuer) -> None:
    await bind(bound, {"name": "admins", "users": ["root"], "groups": ["edge:admins", "admins"], "role": "admin"})
    claims = {"email": "root", "preferred_username": "root", "groups": ["admins"]}
    found = (await whoami(bound, of_runner(cluster, **claims))).json()
    assert (found["name"], found["role"]) == (f"edge:{RUNNER}", "user")


def write(file: Path, text: str) -> None:
    file.write_text(text)


async def test_keys_of_a_file_are_read_again(bound: Service, cluster: ServedIssuer, jwks_file: Path) -> None:
    old = of_runner(cluster)
    assert (await whoami(bound, old)).status_code == 200
    cluster.keys, cluster.signs_with = {"k2": make_key()}, "k2"
    assert "does not publish" in await refusal(bound, of_runner(cluster))
    write(jwks_file, json.dumps(cluster.jwks()))
    assert (await whoami(bound, of_runner(cluster))).status_code == 200
    assert "the key 'k1'" in await refusal(bound, old)
    write(jwks_file, "no JSON")
    cluster.keys["k3"], cluster.signs_with = make_key(), "k3"
    waits = await whoami(bound, of_runner(cluster))
    assert (waits.status_code, "jwks.json is no JSON" in waits.text) == (503, True)
