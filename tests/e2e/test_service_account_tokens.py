"""Service accounts of a real Kubernetes API server as callers: tokens of its TokenRequest API, by the command line and the SDK."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.control_plane import API_SERVER, ControlPlane, assets
from tests.conftest import Service, job
from tests.integration.test_oidc import bind, refusal, whoami
from tests.unit.fake_api import run as run_here
from tests.waiting import eventually
from trainmaster.client.http import Client
from trainmaster.protocol.errors import ProblemError

if assets() is None:
    pytest.skip("KUBEBUILDER_ASSETS names no folder with etcd and kube-apiserver", allow_module_level=True)
AUDIENCE = "trainmaster"
BY_FILE, BY_DISCOVERY = "https://kubernetes.default.svc", ""
ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
NAME = "west:system:serviceaccount:default:runner"


@pytest.fixture(params=[BY_FILE, BY_DISCOVERY], ids=["by a file of keys", "by discovery"])
async def plane(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ControlPlane]:
    """A control plane with the service account runner. Its address is that of its issuer, or one that nobody can reach."""
    flags = {} if request.param else {API_SERVER: ["--service-account-issuer=@URL@"]}
    plane = await ControlPlane.start(tmp_path, scheduler=False, controller_manager=False, flags=flags)
    async with plane.client() as api:
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "runner"}}
        await api.post(ACCOUNTS, account)
        subject = {"kind": "Group", "name": "system:unauthenticated", "apiGroup": "rbac.authorization.k8s.io"}
        role = {"kind": "ClusterRole", "name": "system:service-account-issuer-discovery"}
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "issuer-discovery"},
            "roleRef": role | {"apiGroup": "rbac.authorization.k8s.io"},
            "subjects": [subject],
        }
        await api.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
        keys = await api.get("/openid/v1/jwks")
        (tmp_path / "jwks.json").write_text(keys if isinstance(keys, str) else json.dumps(keys))
    yield plane
    await plane.stop()


@pytest.fixture
async def more_settings(plane: ControlPlane, request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    by_file = "by a file" in request.node.name
    keys = {"jwksFile": str(tmp_path / "jwks.json")} if by_file else {"caFile": str(plane.ca_file)}
    issuer = {
        "name": "west",
        "issuer": BY_FILE if by_file else plane.url,
        "serviceAccounts": True,
        "audiences": [AUDIENCE],
        "prefix": "west:",
        **keys,
    }
    file = tmp_path / "issuers.yaml"
    file.write_text(json.dumps({"issuers": [issuer]}))
    return {"oidc_issuers_file": str(file)}


@pytest.fixture
async def bound(service: Service) -> Service:
    spec = {"name": "ci", "users": [NAME], "role": "user", "queues": ["default"]}
    await bind(service, spec)
    return service


async def test_a_service_account_calls_by_its_projected_token(
    bound: Service, plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = await plane.service_account_token("default", "runner", 600, [AUDIENCE])
    found = (await whoami(bound, token)).json()
    assert (found["name"], found["role"]) == (NAME, "user")
    assert found["groups"] == ["west:system:serviceaccounts", "west:system:serviceaccounts:default"]
    assert "is for another client" in await refusal(bound, await plane.service_account_token("default", "runner", 600))
    other = await plane.service_account_token("default", "runner", 600, ["vault"])
    assert "is for another client" in await refusal(bound, other)

    file = tmp_path / "token"
    file.write_text(token)
    for name in ("TRAINMASTER_API_KEY", "TRAINMASTER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRAINMASTER_CONFIG", str(tmp_path / "config.yaml"))
    monkeypatch.setenv("TRAINMASTER_URL", bound.url)
    monkeypatch.setenv("TRAINMASTER_TOKEN_FILE", str(file))
    shown = await asyncio.to_thread(run_here, "whoami", "-o", "json")
    assert (shown.exit_code, json.loads(shown.stdout)["name"]) == (0, NAME), shown.output

    def submits_while_the_token_changes() -> str:
        with Client() as client:
            client.whoami()
            file.write_text("eyJhbGciOiJSUzI1NiJ9.e30.x")
            with pytest.raises(ProblemError, match="the token"):
                client.whoami()
            file.write_text(new)
            (made,) = client.submit(job())
            return made

    new = await plane.service_account_token("default", "runner", 900, [AUDIENCE])
    assert new != token
    made = await asyncio.to_thread(submits_while_the_token_changes)
    assert (await bound.job(made))["submittedBy"] == NAME


async def test_an_account_of_another_name_has_no_rights(bound: Service, plane: ControlPlane) -> None:
    async with plane.client() as api:
        await api.post(ACCOUNTS, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "web"}})
    answer = await whoami(bound, await plane.service_account_token("default", "web", 600, [AUDIENCE]))
    assert (answer.status_code, "west:system:serviceaccount:default:web" in answer.text) == (403, True)
    await bind(bound, {"name": "all", "groups": ["west:system:serviceaccounts"], "role": "user", "queues": ["default"]})
    token = await plane.service_account_token("default", "web", 600, [AUDIENCE])

    async def is_bound() -> bool:
        return (await whoami(bound, token)).status_code == 200

    await eventually(is_bound, 4)
