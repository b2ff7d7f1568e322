"""Signing in by the command line: the device flow with a real issuer, tokens that are replaced before they end, and kubectl's exec."""

import asyncio
import json
import math
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import Result

from tests.conftest import ADMIN_KEY, Service
from tests.oidc_issuer import CLIENT_ID, ServedIssuer, running_issuer
from tests.unit.fake_api import run as run_here
from trainmaster.cli import kubectl_plugin, start
from trainmaster.client import sign_in
from trainmaster.client.async_http import AsyncClient
from trainmaster.client.config import read_contexts, write_contexts
from trainmaster.client.http import Client
from trainmaster.protocol.states import Exit

BINDING = {"name": "vision", "groups": ["vision"], "role": "user", "queues": ["default"]}


@pytest.fixture
def issuer() -> Iterator[ServedIssuer]:
    with running_issuer() as served:
        yield served


@pytest.fixture
def more_settings(issuer: ServedIssuer) -> dict[str, Any]:
    return {"oidc_issuer": issuer.url, "oidc_client_ids": CLIENT_ID}


@pytest.fixture(autouse=True)
def configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("TRAINMASTER_URL", "TRAINMASTER_API_KEY", "TRAINMASTER_CONTEXT", "SSL_CERT_FILE", "KUBECONFIG"):
        monkeypatch.setenv(name, "to be restored")
        monkeypatch.delenv(name)
    monkeypatch.setenv("TRAINMASTER_CONFIG", str(tmp_path / "config.yaml"))
    return tmp_path / "config.yaml"


async def run(*words: str) -> Result:
    return await asyncio.to_thread(run_here, *words)


@pytest.fixture
async def bound(service: Service) -> Service:
    answer = await service.http.put("/v1/role-bindings/vision", json=BINDING)
    assert answer.status_code == 201, answer.text
    return service


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def has_address_for_kubectl() -> None:
    """Let the context in use have another address for kubectl, as that of ``up`` has."""
    contexts = read_contexts()
    write_contexts(contexts.having("fleet", replace(contexts.by_name["fleet"], kubernetes="https://fleet.test")))


async def login(service: Service) -> str:
    """Sign in as ana; return what was said on stderr."""
    done = await run("login", service.url, "--oidc", "--name", "fleet")
    assert done.exit_code == 0, done.output
    assert done.stdout == f"fleet  signed in at {service.url} as ana@example.com (user)\n"
    return done.stderr


async def test_a_person_signs_in_by_a_code(bound: Service, issuer: ServedIssuer, configuration: Path) -> None:
    issuer.approved = False
    said = await login(bound)
    assert f"open {issuer.url}/device in a browser and enter the code WDJB-MJHT" in said
    assert len(issuer.grants) == 2, "the command asked until the code was entered"
    assert mode_of(configuration) == 0o600
    shown = (await run("whoami")).stdout
    for words in (
        "ana@example.com (id ",
        f"signed in at {issuer.url}",
        "vision",
        "user: jobs of these queues",
        "default",
    ):
        assert words in shown
    assert (await run("jobs")).exit_code == 0
    assert f"account of {issuer.url}" in (await run("contexts")).stdout
    assert (await run("logout")).exit_code == 0
    assert read_contexts().by_name["fleet"].credential == ""
    assert (await run("jobs")).exit_code == Exit.USAGE


async def test_who_is_not_bound_is_told_so_and_nothing_is_stored(service: Service, issuer: ServedIssuer) -> None:
    done = await run("login", service.url, "--oidc")
    assert (done.exit_code, "no role binding names the user 'ana@example.com'" in done.stderr) == (Exit.DENIED, True)
    assert read_contexts().by_name == {}


async def test_an_issuer_without_the_device_flow_is_named(service: Service, issuer: ServedIssuer) -> None:
    issuer.has_device_flow = False
    done = await run("login", service.url, "--oidc")
    assert (done.exit_code, "has no device authorization flow" in done.stderr) == (Exit.USAGE, True)


async def test_a_refusal_of_the_issuer_is_told(
    service: Service, issuer: ServedIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = 400, {"error": "access_denied", "error_description": "ana said no"}
    monkeypatch.setattr(issuer, "granted", lambda _form: refused)
    done = await run("login", service.url, "--oidc")
    assert (done.exit_code, "refuses to sign in: ana said no" in done.stderr) == (Exit.USAGE, True)


async def test_a_token_that_ends_soon_is_replaced_once(bound: Service, issuer: ServedIssuer) -> None:
    issuer.seconds, issuer.age = 30, 3600  # less than the time before its end at which a token is replaced
    await login(bound)
    issuer.seconds, issuer.age = 3600, 0
    first = read_contexts().by_name["fleet"]
    done, _, _ = await asyncio.gather(run("jobs"), asyncio.to_thread(_jobs_by_sdk), _jobs_by_async_sdk())
    assert done.exit_code == 0
    second = read_contexts().by_name["fleet"]
    assert issuer.grants.count("refresh_token") == 1, "processes and clients share the new token"
    assert (second.id_token != first.id_token, second.refresh_token) == (True, "refresh-2")
    assert sign_in.end_of(second.id_token) > sign_in.end_of(first.id_token)


def _jobs_by_sdk() -> None:
    with Client() as client:
        assert list(client.jobs()) == []


async def _jobs_by_async_sdk() -> None:
    async with AsyncClient() as client:
        assert [one async for one in client.jobs()] == []


async def test_the_token_of_another_account_is_not_taken_in_place_of_ones_own(
    bound: Service, issuer: ServedIssuer
) -> None:
    await login(bound)
    stored = read_contexts().by_name["fleet"].id_token
    ended = issuer.token(sub="1002", email="bo@example.com", iat=1, exp=2)
    assert sign_in.lasting(ended, bound.url) == ended
    own = issuer.token(iat=1, exp=2)
    assert sign_in.lasting(own, bound.url) == stored
    assert sign_in.lasting(own, "https://other.test") == own


async def test_a_client_that_lives_longer_than_its_token_goes_on(
    bound: Service, issuer: ServedIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await login(bound)
    with Client() as client:
        token = read_contexts().by_name["fleet"].id_token
        issuer.seconds = 7200
        # As if an hour had passed: the next request finds a token that ends soon.
        monkeypatch.setattr(sign_in, "_EARLY_SECONDS", 3601.0)
        monkeypatch.setattr(sign_in, "_EARLY_PART", 1.0)
        await asyncio.to_thread(lambda: list(client.jobs()))
    assert read_contexts().by_name["fleet"].id_token != token


async def test_a_sign_in_that_has_ended_says_how_to_begin_again(bound: Service, issuer: ServedIssuer) -> None:
    issuer.seconds, issuer.age, issuer.refuses_refresh = 30, 3600, True
    await login(bound)
    done = await run("jobs")
    assert done.exit_code == Exit.USAGE
    assert "the sign-in of context 'fleet' has ended: the session has ended" in done.stderr
    assert f"trainmaster login {bound.url} --oidc --name fleet" in done.stderr


async def test_kubectl_asks_this_program_for_tokens(
    bound: Service, issuer: ServedIssuer, configuration: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await login(bound)
    found = read_contexts().by_name["fleet"]
    has_address_for_kubectl()
    (user,) = yaml.safe_load((await run("kubeconfig")).stdout)["users"]
    plugin = user["user"]["exec"]
    assert (plugin["apiVersion"], plugin["command"], plugin["interactiveMode"]) == (
        "client.authentication.k8s.io/v1",
        "trainmaster",
        "IfAvailable",
    )
    assert plugin["env"] == [{"name": "TRAINMASTER_CONFIG", "value": str(configuration)}]
    credential = json.loads((await run(*plugin["args"])).stdout)
    assert (credential["kind"], credential["status"]["token"]) == ("ExecCredential", found.id_token)
    assert credential["status"]["expirationTimestamp"].endswith("Z")
    assert (await run("token")).stdout == f"{found.id_token}\n"
    # The plugin of kubectl finds the context by the same file.
    file = tmp_path / "kubeconfig"
    file.write_text((await run("kubeconfig")).stdout)
    monkeypatch.setenv("KUBECONFIG", str(file))
    monkeypatch.delenv("TRAINMASTER_CONFIG")
    monkeypatch.setattr("sys.argv", ["kubectl-trainmaster"])
    monkeypatch.setattr(start, "main", lambda: None)
    kubectl_plugin.main()
    assert (await run("whoami", "-o", "json")).exit_code == 0
    assert json.loads((await run("whoami", "-o", "json")).stdout)["groups"] == ["vision"]


async def test_a_key_can_be_left_out_of_a_kubeconfig(service: Service, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(ADMIN_KEY)
    await run("login", service.url, "--key-file", str(tmp_path / "key"), "--name", "fleet")
    assert (await run("token")).stdout == f"{ADMIN_KEY}\n"
    assert json.loads((await run("token", "--exec-credential")).stdout)["status"] == {"token": ADMIN_KEY}
    has_address_for_kubectl()
    shown = (await run("kubeconfig", "--exec")).stdout
    assert ("exec:" in shown, ADMIN_KEY in shown) == (True, False)
    other = await run("--url", "https://other.test", "--key", "tmk_other", "kubeconfig", "--exec")
    assert (other.exit_code, "kubectl would ask for the key of a context" in other.stderr) == (Exit.USAGE, True)


async def test_a_dispatcher_without_an_issuer_says_so(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sign_in, "_send", lambda *_: (200, {}))
    done = await run("login", service.url, "--oidc")
    assert (done.exit_code, "has no OpenID Connect issuer; use an API key" in done.stderr) == (Exit.USAGE, True)


async def test_an_issuer_is_chosen_by_its_name(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    first = {"name": "default", "issuer": "https://sso.test", "clientId": "a"}
    second = {"name": "partner", "issuer": "https://sso.partner.test", "clientId": "b", "scopes": ["openid", "roles"]}
    monkeypatch.setattr(sign_in, "_send", lambda *_: (200, {**first, "issuers": [first, second]}))
    assert sign_in.terms_of(service.url) == sign_in.SignInTerms("https://sso.test", "a", others=("partner",))
    chosen = sign_in.SignInTerms("https://sso.partner.test", "b", "", ("openid", "roles"), ("default",))
    assert sign_in.terms_of(service.url, "partner") == chosen
    done = await run("login", service.url, "--oidc", "--issuer", "partnr")
    assert (done.exit_code, "has no issuer 'partnr'; did you mean 'partner'?" in done.stderr) == (Exit.USAGE, True)
    alone = await run("login", service.url, "--issuer", "partner")
    assert (alone.exit_code, "it goes with --oidc" in alone.stderr) == (Exit.USAGE, True)
    monkeypatch.setattr(sign_in, "_send", lambda *_: (200, first))
    assert sign_in.terms_of(service.url).issuer == "https://sso.test", "of a dispatcher of an older release"


def test_tokens_are_told_from_keys() -> None:
    assert not sign_in.is_token("tmk_x")
    assert sign_in.end_of("eyJ.e30.x") == math.inf
    assert sign_in.end_of("eyJ.###.x") == math.inf


async def test_an_admin_sees_people_and_lets_one_in_again(bound: Service, issuer: ServedIssuer) -> None:
    await login(bound)
    admin = ("--url", bound.url, "--key", ADMIN_KEY)
    (line,) = [one for one in (await run(*admin, "keys")).stdout.splitlines() if "ana@example.com" in one]
    assert "person" in line.split()
    number = line.split()[0]
    assert (await run(*admin, "keys", "revoke", number)).exit_code == 0
    done = await run(*admin, "keys", "restore", number)
    assert (done.exit_code, done.stdout) == (0, f"person {number}  restored\n")
