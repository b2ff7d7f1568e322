"""Names in a valid submission of what does not exist are told in its answer, by REST, SDK and command line."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.conftest import ADMIN_KEY, FakeAgent, Service, job
from trainmaster import AsyncClient
from trainmaster.cli.main import app
from trainmaster.protocol.agent import CapacityReport, NodeGroup
from trainmaster_dispatcher.services import cluster_admissions


@pytest.fixture
async def agent(service: Service) -> FakeAgent:
    """The agent of the cluster private, which has GPUs and the dataset imagenet."""
    agent = service.agent()
    group = NodeGroup(name="node", count=1, free={"cpu": 64_000, "memory": 2**36, "nvidia.com/gpu": 8})
    report = CapacityReport(groups=(group,), runtime="test", scheduler="test", datasets=("imagenet",))
    assert (await agent.sync(capacity=report, full=True)).status_code == 200
    return agent


def named(resource: str = "nvidia.com/gpu", **placement: Any) -> dict[str, Any]:
    template = {"command": ["true"], "resources": {"cpu": 1, resource: 1}}
    return job(roles=[{"name": "main", "template": template}], placement=placement)


WARNED = {
    "placement.clusters[0]": "there is no cluster 'privat' now; did you mean private?; until there is, the job waits",
    "placement.datasets[1]": "no data is known as 'imagenett' now; did you mean imagenet?; until there is, the job waits",
    "roles[0].template.resources.gpu": (
        "no cluster has the resource 'gpu' now; did you mean nvidia.com/gpu?; until there is, the job waits"
    ),
}
SPEC = named("gpu", clusters=["privat", "edge"], datasets=["imagenet", "imagenett"])


async def test_names_of_what_does_not_exist_are_warned_of_and_the_job_is_taken(
    service: Service, agent: FakeAgent
) -> None:
    answer = await service.http.post("/v1/jobs", json=SPEC, headers={"Idempotency-Key": "k"})
    assert answer.status_code == 201, answer.text
    assert {one["path"]: one["message"] for one in answer.json()["warnings"]} == WARNED
    again = await service.http.post("/v1/jobs", json=SPEC, headers={"Idempotency-Key": "k"})
    assert again.json() == answer.json()


async def test_names_of_what_exists_are_no_warning(service: Service, agent: FakeAgent) -> None:
    await service.http.put("/v1/datasets/mine", json={"name": "mine", "size": "1Gi"})
    answer = await service.http.post("/v1/jobs", json=named(clusters=["private"], datasets=["mine", "imagenet"]))
    assert answer.status_code == 201
    assert "warnings" not in answer.json()


async def test_the_first_submissions_at_once_are_no_warning(service: Service, agent: FakeAgent) -> None:
    """Those that come while clusters are read for the first time wait for it."""
    answers = await asyncio.gather(
        *(service.http.post("/v1/jobs", json=named(clusters=["private"], datasets=["imagenet"])) for _ in range(8))
    )
    assert [(one.status_code, "warnings" in one.json()) for one in answers] == [(201, False)] * 8


async def test_what_was_made_since_names_were_read_is_no_warning(
    service: Service, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_admissions, "_SURE_SECONDS", 0.0)
    assert "warnings" in (await service.http.post("/v1/jobs", json=named(clusters=["new"]))).json()
    assert (await service.http.put("/v1/clusters/new", json={"name": "new"})).status_code == 201
    assert "warnings" not in (await service.http.post("/v1/jobs", json=named(clusters=["new"]))).json()


async def test_each_name_is_warned_of_once_in_a_call_of_many_and_in_a_table(service: Service, agent: FakeAgent) -> None:
    answer = await service.http.post("/v1/jobs", json={"jobs": [named(), SPEC, SPEC]})
    assert [one["path"] for one in answer.json()["warnings"]] == [f"jobs[1].{path}" for path in WARNED]
    spec = named("gpu") | {"roles": [{"name": "m", "template": {"command": ["${a}"], "resources": {"gpu": 1}}}]}
    answer = await service.http.post("/v1/jobs", json={"job": spec, "parameters": [{"a": 1}, {"a": 2}]})
    assert [one["path"] for one in answer.json()["warnings"]] == ["job.roles[0].template.resources.gpu"]


async def test_a_placeholder_that_the_table_does_not_fill_is_warned_of(service: Service, agent: FakeAgent) -> None:
    spec = named() | {"roles": [{"name": "m", "template": {"command": ["run", "${rate}", "${seed}"]}}]}
    for more in ({}, {"dryRun": True}):
        answer = await service.http.post(
            "/v1/jobs", params=more, json={"job": spec, "parameters": [{"rate": 1}, {"rate": 2}]}
        )
        assert answer.status_code in (200, 201), answer.text
        (warning,) = answer.json()["warnings"]
        assert warning["path"] == "job.roles[0]"
        assert "the table has no parameter 'seed', only rate: ${seed} stays as it is" in warning["message"]
    async with AsyncClient(service.url, ADMIN_KEY) as client:
        ids = await client.submit_parameters(spec, [{"rate": 1}])
        assert [one.path for one in ids.warnings] == ["job.roles[0]"]


async def test_the_command_line_warns_of_a_column_that_a_table_lacks(
    service: Service, agent: FakeAgent, tmp_path: Path
) -> None:
    file, table = tmp_path / "job.json", tmp_path / "table.csv"
    file.write_text(
        json.dumps(named() | {"roles": [{"name": "m", "template": {"command": ["run", "${rate}", "${seed}"]}}]})
    )
    table.write_text("rate\n1\n2\n")
    env = {"TRAINMASTER_URL": service.url, "TRAINMASTER_API_KEY": ADMIN_KEY, "NO_COLOR": "1"}
    command = ["submit", str(file), "--parameters", str(table)]
    done = await asyncio.to_thread(CliRunner().invoke, app, command, env=env)
    assert done.exit_code == 0, done.output
    assert f"warning: {file}: roles[0]: the table has no parameter 'seed'" in done.stderr


async def test_a_user_is_told_no_name_that_the_user_may_not_see(service: Service, agent: FakeAgent) -> None:
    await service.http.put("/v1/queues/secret", json={"path": "secret"})
    cluster = {"name": "private", "clusterKind": "private", "onlyQueues": ["secret"]}
    assert (await service.http.put("/v1/clusters/private", json=cluster)).status_code == 200
    made = await service.http.post("/v1/keys", json={"name": "u", "role": "user", "queues": ["default"]})
    async with service.as_key(made.json()["key"]) as user:
        answer = await user.post("/v1/jobs", json=SPEC)
        assert answer.status_code == 201, answer.text
        assert "private" not in answer.text
        assert "nvidia" not in answer.text
        other = await user.post("/v1/jobs", json=named(clusters=["private"]))
        assert "there is no cluster 'private' now" in other.text, "as of one that does not exist"


async def test_a_dry_run_warns_as_does_the_sdk(service: Service, agent: FakeAgent) -> None:
    answer = await service.http.post("/v1/jobs", params={"dryRun": True}, json=SPEC)
    assert [one["path"] for one in answer.json()["warnings"]] == list(WARNED)
    async with AsyncClient(service.url, ADMIN_KEY) as client:
        tried = await client.dry_run(SPEC)
        assert [one.path for one in tried.warnings] == [f"jobs[0].{path}" for path in WARNED]
        ids = await client.submit(SPEC)
        assert len(ids) == 1
        assert [one.path for one in ids.warnings] == [f"jobs[0].{path}" for path in WARNED]


async def test_the_command_line_warns_on_stderr(service: Service, agent: FakeAgent, tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_text(json.dumps(SPEC))
    env = {"TRAINMASTER_URL": service.url, "TRAINMASTER_API_KEY": ADMIN_KEY, "NO_COLOR": "1"}
    done = await asyncio.to_thread(CliRunner().invoke, app, ["submit", str(file)], env=env)
    assert done.exit_code == 0, done.output
    assert len(done.stdout.splitlines()) == 1
    for path, message in WARNED.items():
        assert f"warning: {file}: {path}: {message}\n" in done.stderr
