"""Files of jobs: uploads, submissions that name them, what agents learn and store, artifacts, quota, retention; and real members."""

import asyncio
import hashlib
import io
import os
import random
import signal
import tarfile
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import FakeAgent, Service, job
from tests.integration.rows import execute, picture, value
from tests.integration.running_agents import running_agent
from tests.integration.test_authorization import make_key
from tests.integration.test_file_store import object_storage
from tests.integration.test_local_runtime import ROOMY
from tests.waiting import eventually
from trainmaster import AsyncClient, ProblemError
from trainmaster.archives import pack
from trainmaster.cluster_model.capabilities import Capability
from trainmaster.protocol.errors import Code
from trainmaster.protocol.files import PART_BYTES
from trainmaster.protocol.states import RunState
from trainmaster_agent.arrays.server import ArrayServer, listener_of_processes
from trainmaster_agent.runtime.local.runtime import LocalRuntime
from trainmaster_dispatcher.services.retention import Retention

__all__ = ["object_storage"]
TAKES_FILES = ("gang", Capability.FILES, Capability.MEMBER_RESTART)
MOST, PER_QUEUE = 6_000_000, 9_000_000


@pytest.fixture
def more_settings(tmp_path: Path) -> dict[str, Any]:
    return {
        "files_store": f"file://{tmp_path}/files",
        "files_bytes": MOST,
        "files_bytes_per_queue": PER_QUEUE,
        "keep_files": "1h",
    }


@pytest.fixture
async def client(service: Service) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(service.url, "tmk_admin") as made:
        yield made


@pytest.fixture
async def agent(service: Service) -> FakeAgent:
    connected = service.agent()
    await connected.connect(capabilities=TAKES_FILES)
    return connected


def folder_of(path: Path, **files: bytes) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (path / name.replace("__", ".")).write_bytes(data)
    return path


def archive(path: Path) -> bytes:
    file = io.BytesIO()
    pack(path, file)
    return file.getvalue()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def code_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


async def upload(service: Service, data: bytes, queue: str = "default", http: httpx.AsyncClient | None = None) -> str:
    """Upload data by hand; return its name."""
    http = http or service.http
    begun = await http.post("/v1/files", json={"queue": queue, "sha256": sha256(data), "size": len(data)})
    assert begun.status_code == 200, begun.text
    if not begun.json()["stored"]:
        place = f"/v1/files/{begun.json()['upload']}"
        for offset in range(0, len(data), PART_BYTES):
            sent = await http.put(place, params={"offset": offset}, content=data[offset : offset + PART_BYTES])
            assert sent.status_code == 200, sent.text
        done = await http.post(f"{place}/finish")
        assert done.status_code == 200, done.text
        assert done.json()["stored"]
    return str(begun.json()["files"])


class RunOfFiles:
    """The calls of an agent about the files of one run."""

    def __init__(self, agent: FakeAgent, run: str) -> None:
        self.agent, self.run = agent, run

    async def call(self, method: str, path: str, expected: int = 200, **options: Any) -> httpx.Response:
        session = {"session": self.agent.session}
        if "json" in options:
            options["json"] = session | options["json"]
        else:
            options["params"] = session | options.pop("params", {})
        headers = {"Authorization": f"Bearer {self.agent.key}"}
        answer = await self.agent.http.request(method, f"/agent/v1/files/{self.run}{path}", headers=headers, **options)
        assert answer.status_code == expected, answer.text
        return answer

    async def store(self, name: str, data: bytes) -> None:
        body = {"name": name, "size": len(data), "sha256": sha256(data)}
        begun = (await self.call("POST", "/outputs", json=body)).json()
        if begun["upload"] is None:
            return
        await self.call("PUT", f"/uploads/{begun['upload']}", params={"offset": 0}, content=data)
        await self.call("POST", f"/uploads/{begun['upload']}", json={})


async def started(service: Service, agent: FakeAgent, **fields: Any) -> tuple[str, RunOfFiles]:
    """Submit a job with files and report its run as running; its agent has asked for the files."""
    made = await service.submit(**fields)
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 1)
    found = RunOfFiles(agent, run)
    await found.call("GET", "")
    return made, found


# Uploads


async def test_the_same_content_is_uploaded_once_for_a_queue(
    service: Service, client: AsyncClient, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path / "code", train__py=b"print()", noise=os.urandom(PART_BYTES + 1000))
    name = await client.upload_files("default", folder)
    assert name == f"sha256:{sha256(archive(folder))}"
    parts = await value(service.stores, "SELECT count(*) FROM file_uploads")
    assert parts == 0, "the upload is finished"
    assert await client.upload_files("default", folder) == name
    assert await value(service.stores, "SELECT count(*) FROM files") == 1
    assert len(list((tmp_path / "files/files").iterdir())) == 1
    assert (
        await value(service.stores, "SELECT count(*) FROM audit WHERE action = 'upload files' AND target = 'default'")
        == 1
    )


async def test_an_upload_is_stored_only_if_it_is_what_was_announced(service: Service) -> None:
    data = b"x" * 1000
    begun = await service.http.post("/v1/files", json={"queue": "default", "sha256": sha256(data), "size": 1000})
    place = f"/v1/files/{begun.json()['upload']}"
    assert code_of(await service.http.post(f"{place}/finish")) == (422, "upload-mismatch")
    await service.http.put(place, params={"offset": 0}, content=b"y" * 1000)
    assert code_of(await service.http.post(f"{place}/finish")) == (422, "upload-mismatch")
    beyond = await service.http.put(place, params={"offset": 1}, content=data)
    assert code_of(beyond) == (422, "upload-mismatch")
    await service.http.put(place, params={"offset": 0}, content=data)
    assert (await service.http.post(f"{place}/finish")).json()["stored"]
    assert code_of(await service.http.post(f"{place}/finish")) == (404, "not-found")


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        ({"queue": "nosuch", "sha256": "0" * 64, "size": 1}, (422, "unknown-queue")),
        ({"queue": "default", "sha256": "0" * 63, "size": 1}, (422, "invalid-spec")),
        ({"queue": "default", "sha256": "0" * 64, "size": 0}, (422, "invalid-spec")),
        ({"queue": "default", "sha256": "0" * 64, "size": MOST + 1}, (413, "body-too-large")),
    ],
)
async def test_an_upload_that_is_refused_changes_nothing(
    service: Service, body: dict[str, Any], refusal: tuple[int, str]
) -> None:
    before = await picture(service.stores)
    assert code_of(await service.http.post("/v1/files", json=body)) == refusal
    assert await picture(service.stores) == before


async def test_a_queue_has_a_bound_of_bytes(service: Service) -> None:
    await upload(service, os.urandom(MOST))
    answer = await service.http.post("/v1/files", json={"queue": "default", "sha256": "0" * 64, "size": MOST})
    assert code_of(answer) == (409, "files-full")
    assert "TRAINMASTER_FILES_BYTES_PER_QUEUE" in answer.json()["detail"]


async def test_two_uploads_at_once_do_not_exceed_the_bound_together(service: Service) -> None:
    data = [os.urandom(MOST) for _ in range(2)]
    begun = [
        (await service.http.post("/v1/files", json={"queue": "default", "sha256": sha256(one), "size": MOST})).json()
        for one in data
    ]
    for one, found in zip(data, begun, strict=True):
        for offset in range(0, MOST, PART_BYTES):
            part = one[offset : offset + PART_BYTES]
            await service.http.put(f"/v1/files/{found['upload']}", params={"offset": offset}, content=part)
    ends = await asyncio.gather(*(service.http.post(f"/v1/files/{one['upload']}/finish") for one in begun))
    assert sorted(one.status_code for one in ends) == [200, 409]
    assert await value(service.stores, "SELECT sum(size) FROM files") == MOST


# Submissions


async def test_a_job_may_name_only_files_that_its_queue_has(service: Service) -> None:
    missing = {"files": f"sha256:{'0' * 64}"}
    before = await picture(service.stores)
    answer = await service.http.post("/v1/jobs", json=job(inputs=[missing]))
    assert code_of(answer) == (422, "unknown-files")
    assert answer.json()["mistakes"][0]["path"] == "inputs[0].files"
    many = await service.http.post("/v1/jobs", json={"jobs": [job(), job(inputs=[missing])]})
    assert many.json()["mistakes"][0]["path"] == "jobs[1].inputs[0].files"
    assert await picture(service.stores) == before
    name = await upload(service, b"data")
    assert (await service.http.post("/v1/jobs", json=job(inputs=[{"files": name}]))).status_code == 201


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"inputs": [{"files": f"sha256:{'0' * 64}", "path": "/abs"}]}, "no path inside of the member's folder"),
        ({"outputs": [{"name": "m", "path": "../x"}]}, "no path inside of the member's folder"),
        ({"outputs": [{"name": "m", "path": "a"}, {"name": "m", "path": "b"}]}, "two outputs have the name 'm'"),
        ({"inputs": [{"files": "sha256:12"}]}, "64 hexadecimal digits"),
        ({"inputs": [{"url": "s3://bucket/key"}]}, "not known"),
    ],
)
async def test_mistakes_in_files_are_explained(service: Service, fields: dict[str, Any], words: str) -> None:
    answer = await service.http.post("/v1/jobs", json=job(**fields))
    assert answer.status_code == 422
    assert words in answer.text


async def test_jobs_with_files_go_only_to_clusters_that_take_them(service: Service) -> None:
    plain = service.agent()
    await plain.connect(capabilities=("gang", Capability.MEMBER_RESTART))
    made = await service.submit(outputs=[{"name": "m", "path": "m"}])

    async def says_why() -> bool:
        return "files" in (await service.http.get(f"/v1/jobs/{made}/why")).text

    await eventually(says_why)
    await plain.connect(capabilities=TAKES_FILES)
    assert (await plain.next_start())["job"] == made


# Agents


async def test_an_agent_reads_the_inputs_of_its_live_run(service: Service, agent: FakeAgent) -> None:
    data = os.urandom(10_000)
    name = await upload(service, data)
    _, run = await started(service, agent, inputs=[{"files": name, "path": "code"}])
    state = (await run.call("GET", "")).json()
    assert state["inputs"] == [{"path": "code", "sha256": sha256(data), "size": len(data), "url": None}]
    assert len(state["token"]) > 30
    assert (await run.call("GET", "")).json()["token"] == state["token"], "an agent that starts again gets the same"
    part = await run.call("GET", "/inputs/0", params={"offset": 9_000})
    assert part.content == data[9_000:]
    await run.call("GET", "/inputs/1", 404)


async def test_a_run_whose_files_are_gone_says_so_when_they_are_read(service: Service, agent: FakeAgent) -> None:
    name = await upload(service, b"data")
    await service.submit(inputs=[{"files": name}])
    run = RunOfFiles(agent, (await agent.next_start())["run"])
    await execute(service.stores, "DELETE FROM files")
    assert len((await run.call("GET", "")).json()["token"]) > 30, "its agent can start it"
    answer = await run.call("GET", "/inputs/0", 404, params={"offset": 0})
    assert f"the files {name} are not stored any more" in answer.text


async def test_no_other_agent_learns_of_the_files_and_none_of_a_run_that_has_ended(
    service: Service, agent: FakeAgent
) -> None:
    name = await upload(service, b"data")
    _, run = await started(service, agent, inputs=[{"files": name}], outputs=[{"name": "m", "path": "m"}])
    other = service.agent("public", session="session-2")
    await other.connect(capabilities=TAKES_FILES)
    stranger = RunOfFiles(other, run.run)
    body = {"name": "m", "size": 1, "sha256": "0" * 64}
    await stranger.call("GET", "", 404)
    await stranger.call("GET", "/inputs/0", 404)
    await stranger.call("POST", "/outputs", 404, json=body)
    agent.session = "an old session"
    await run.call("GET", "", 409)
    agent.session = "session-1"
    await run.call("POST", "/outputs", json=body)
    await agent.report(run.run, RunState.FAILED, 2)
    await run.call("GET", "", 404)
    await run.call("GET", "/inputs/0", 404)
    await run.call("POST", "/outputs", 404, json=body)


async def test_a_run_that_is_being_stopped_stores_nothing_more(service: Service, agent: FakeAgent) -> None:
    made, run = await started(service, agent, outputs=[{"name": "m", "path": "m"}])
    await service.http.post(f"/v1/jobs/{made}/cancel")
    await run.call("POST", "/outputs", 404, json={"name": "m", "size": 1, "sha256": "0" * 64})


async def test_outputs_become_artifacts_once_for_each_name(service: Service, agent: FakeAgent, tmp_path: Path) -> None:
    made, run = await started(service, agent, outputs=[{"name": "model", "path": "m"}])
    await run.store("model", b"first")
    await run.store("model", b"first")
    await run.store("model", b"second")
    await run.call("POST", "/outputs", 404, json={"name": "other", "size": 1, "sha256": "0" * 64})
    found = (await service.http.get(f"/v1/jobs/{made}/artifacts")).json()
    assert [(one["name"], one["size"], one["sha256"]) for one in found["artifacts"]] == [
        ("model", 6, sha256(b"second"))
    ]
    await agent.report(run.run, RunState.SUCCEEDED, 2)
    assert (await service.job(made))["state"] == "succeeded"
    data = await service.http.get(f"/v1/jobs/{made}/artifacts/model/data")
    assert data.content == b"second"
    part = await service.http.get(f"/v1/jobs/{made}/artifacts/model/data", params={"offset": 3, "limit": 2})
    assert part.content == b"on"
    shown = (await service.http.get(f"/v1/jobs/{made}/artifacts/model")).json()
    assert (shown["partBytes"], "url" in shown) == (PART_BYTES, False)
    assert code_of(await service.http.get(f"/v1/jobs/{made}/artifacts/none")) == (404, "not-found")
    await Retention(service.stores.database, service.stores.settings).run()
    assert len(list((tmp_path / "files/artifacts").iterdir())) == 1, "what was replaced is removed"


async def test_success_without_a_required_output_is_a_failure_with_the_reason(
    service: Service, agent: FakeAgent
) -> None:
    outputs = [{"name": "model", "path": "m"}, {"name": "plots", "path": "p", "optional": True}]
    made, run = await started(service, agent, outputs=outputs)
    await run.call("POST", "/problem", json={"message": "the output model was not stored: m does not exist"})
    await agent.report(run.run, RunState.SUCCEEDED, 2)
    found = await service.job(made)
    assert found["state"] == "failed"
    assert found["message"] == "its commands have succeeded, but the output model was not stored: m does not exist"
    why = (await service.http.get(f"/v1/jobs/{made}/why")).text
    assert "m does not exist" in why


async def test_a_retry_leaves_artifacts_of_its_own_and_only_the_last_run_counts(
    service: Service, agent: FakeAgent
) -> None:
    made, run = await started(
        service, agent, outputs=[{"name": "m", "path": "m"}], retries={"limit": 1, "backOff": "0s"}
    )
    await run.store("m", b"of the first run")
    await agent.report(run.run, RunState.FAILED, 2, end={"category": "exit", "exitCode": 1})
    second = RunOfFiles(agent, (await agent.next_start())["run"])
    await agent.report(second.run, RunState.RUNNING, 1)
    await second.call("GET", "")
    assert (await service.http.get(f"/v1/jobs/{made}/artifacts")).json()["artifacts"] == []
    await second.store("m", b"of the second run")
    await agent.report(second.run, RunState.SUCCEEDED, 2)
    assert (await service.http.get(f"/v1/jobs/{made}/artifacts/m/data")).content == b"of the second run"
    first = await service.http.get(f"/v1/jobs/{made}/artifacts/m/data", params={"attempt": 1})
    assert first.content == b"of the first run"


async def test_an_output_beyond_the_bounds_is_refused(service: Service, agent: FakeAgent) -> None:
    _, run = await started(service, agent, outputs=[{"name": "m", "path": "m"}])
    await run.call("POST", "/outputs", 413, json={"name": "m", "size": MOST + 1, "sha256": "0" * 64})
    await upload(service, os.urandom(MOST))
    refused = await run.call("POST", "/outputs", 409, json={"name": "m", "size": MOST, "sha256": "0" * 64})
    assert refused.json()["code"] == "files-full"


# Other tenants


async def test_another_tenant_sees_uses_and_changes_nothing(service: Service, agent: FakeAgent) -> None:
    for path in ("red", "blue"):
        spec = {"kind": "Queue", "path": path, "allowedKinds": ["private", "public", "edge"]}
        assert (await service.http.put(f"/v1/queues/{path}", json=spec)).status_code in (200, 201)
    red = service.as_key(await make_key(service, "user", queues=["red"]))
    blue = service.as_key(await make_key(service, "user", queues=["blue"]))
    name = await upload(service, b"of red", "red", red)
    begun = await red.post("/v1/files", json={"queue": "red", "sha256": sha256(b"next"), "size": 4})
    place = f"/v1/files/{begun.json()['upload']}"
    before = await picture(service.stores)
    for queue in ("red", "nosuch"):
        answer = await blue.post("/v1/files", json={"queue": queue, "sha256": sha256(b"of red"), "size": 6})
        assert code_of(answer) == (403, "forbidden"), "not even whether the queue has them"
    assert code_of(await blue.put(place, params={"offset": 0}, content=b"next")) == (404, "not-found")
    assert code_of(await blue.post(f"{place}/finish")) == (404, "not-found")
    assert code_of(await blue.post("/v1/jobs", json=job(queue="blue", inputs=[{"files": name}]))) == (
        422,
        "unknown-files",
    )
    assert await picture(service.stores) == before
    made = (await red.post("/v1/jobs", json=job(queue="red", outputs=[{"name": "m", "path": "m"}]))).json()["id"]
    run = RunOfFiles(agent, (await agent.next_start())["run"])
    await agent.report(run.run, RunState.RUNNING, 1)
    await run.call("GET", "")
    await run.store("m", b"of red")
    for path in ("", "/m", "/m/data"):
        assert (await red.get(f"/v1/jobs/{made}/artifacts{path}")).status_code == 200
        assert code_of(await blue.get(f"/v1/jobs/{made}/artifacts{path}")) == (404, "not-found")


# Retention


async def age_files(service: Service) -> None:
    await execute(service.stores, "UPDATE files SET used_at = now() - interval '2 hours'")


async def test_files_stay_while_a_job_names_them_and_go_after_a_while(
    service: Service, client: AsyncClient, agent: FakeAgent, tmp_path: Path
) -> None:
    used, unused = await upload(service, b"used"), await upload(service, b"unused")
    made, run = await started(service, agent, inputs=[{"files": used}], outputs=[{"name": "m", "path": "m"}])
    await run.store("m", b"result")
    retention = Retention(service.stores.database, service.stores.settings)
    await retention.run()
    assert await value(service.stores, "SELECT count(*) FROM files") == 2, "both are young"
    await age_files(service)
    await retention.run()
    assert await value(service.stores, "SELECT sha256 FROM files") == sha256(b"used")
    assert await value(service.stores, "SELECT count(*) FROM file_removals") == 0
    again = await service.http.post("/v1/jobs", json=job(inputs=[{"files": unused}]))
    assert code_of(again) == (422, "unknown-files")
    await agent.report(run.run, RunState.SUCCEEDED, 2)
    await execute(service.stores, "UPDATE jobs SET ended_at = now() - interval '400 days'")
    await execute(service.stores, "UPDATE runs SET counted = true")
    await age_files(service)
    await retention.run()
    assert (await service.http.get(f"/v1/jobs/{made}")).status_code == 404
    for table in ("files", "file_uses", "artifacts", "run_files", "file_uploads", "file_removals"):
        assert await value(service.stores, f"SELECT count(*) FROM {table}") == 0, table
    assert not [path for path in (tmp_path / "files").rglob("*") if path.is_file()]


async def test_files_of_a_schedule_stay(service: Service) -> None:
    name = await upload(service, b"nightly")
    schedule = {
        "kind": "Schedule",
        "name": "nightly",
        "queue": "default",
        "schedule": "0 3 * * *",
        "job": {
            key: text for key, text in job(inputs=[{"files": name}]).items() if key not in ("kind", "queue", "name")
        },
    }
    answer = await service.http.post("/v1/schedules", json=schedule)
    assert answer.status_code == 201, answer.text
    await age_files(service)
    await Retention(service.stores.database, service.stores.settings).run()
    assert await value(service.stores, "SELECT count(*) FROM files") == 1


async def test_uploads_that_were_never_finished_go(service: Service, tmp_path: Path) -> None:
    begun = await service.http.post("/v1/files", json={"queue": "default", "sha256": "0" * 64, "size": 9})
    await service.http.put(f"/v1/files/{begun.json()['upload']}", params={"offset": 0}, content=b"half")
    await execute(service.stores, "UPDATE file_uploads SET created_at = now() - interval '2 days'")
    await Retention(service.stores.database, service.stores.settings).run()
    assert await value(service.stores, "SELECT count(*) FROM file_uploads") == 0
    assert not [path for path in (tmp_path / "files").rglob("*") if path.is_file()]


class TestWithoutAStore:
    @pytest.fixture
    def more_settings(self) -> dict[str, Any]:
        return {}

    async def test_files_are_refused_with_what_an_admin_has_to_do(self, service: Service) -> None:
        begun = await service.http.post("/v1/files", json={"queue": "default", "sha256": "0" * 64, "size": 1})
        submitted = await service.http.post("/v1/jobs", json=job(outputs=[{"name": "m", "path": "m"}]))
        for answer in (begun, submitted):
            assert code_of(answer) == (422, "files-off")
            assert "TRAINMASTER_FILES_STORE" in answer.json()["detail"]


# Real members


def local_agent(service: Service, state_dir: Path) -> AbstractAsyncContextManager[None]:
    """Run an agent with members that are processes of this machine while the block runs."""
    runtime = LocalRuntime(state_dir, ROOMY)
    return running_agent(
        service, runtime, serve_arrays=lambda client: ArrayServer(listener_of_processes(state_dir), client)
    )


@pytest.fixture
async def local(service: Service, tmp_path: Path) -> AsyncIterator[Path]:
    state_dir = tmp_path / "state"
    async with local_agent(service, state_dir):
        yield state_dir


def shell(command: str, replicas: int = 1, **fields: Any) -> dict[str, Any]:
    template = {"command": ["sh", "-c", command], "resources": {"cpu": "1"}}
    return {"roles": [{"name": "main", "replicas": replicas, "template": template}]} | fields


async def output_of(service: Service, made: str) -> str:
    return (await service.http.get(f"/v1/jobs/{made}/logs")).text


async def test_a_folder_goes_to_each_member_and_results_come_back(
    service: Service, client: AsyncClient, local: Path, tmp_path: Path
) -> None:
    code = folder_of(tmp_path / "code", greet__sh=b"echo hello $TRAINMASTER_RANK", noise=os.urandom(PART_BYTES + 10))
    name = await client.upload_files("default", code)
    command = "sh src/greet.sh; mkdir -p out; cp src/noise out/noise; echo $TM_FILES_TOKEN > out/token"
    made = await service.submit(
        **shell(
            command, replicas=3, inputs=[{"files": name, "path": "src"}], outputs=[{"name": "model", "path": "out"}]
        )
    )
    assert (await service.until(made, "succeeded", "failed", seconds=60))["state"] == "succeeded", await output_of(
        service, made
    )
    logs = await output_of(service, made)
    assert all(f"hello {rank}" in logs for rank in range(3))
    found = await client.download_artifact(made, "model", tmp_path / "got")
    assert (tmp_path / "got/noise").read_bytes() == (code / "noise").read_bytes()
    assert (tmp_path / "got/token").read_text().strip() == "", "commands do not get the run's token"
    assert found.attempt == 1
    with pytest.raises(ProblemError) as refused:
        await client.download_artifact(made, "none", tmp_path / "none")
    assert refused.value.code is Code.NOT_FOUND


async def test_a_missing_output_fails_the_run_and_an_optional_one_does_not(service: Service, local: Path) -> None:
    made = await service.submit(**shell("true", outputs=[{"name": "m", "path": "nothere"}]))
    found = await service.until(made, "succeeded", "failed", seconds=60)
    assert found["message"] == "its commands have succeeded, but the output m was not stored: nothere does not exist"
    optional = await service.submit(**shell("true", outputs=[{"name": "m", "path": "nothere", "optional": True}]))
    assert (await service.until(optional, "succeeded", "failed", seconds=60))["state"] == "succeeded"


@pytest.mark.parametrize(
    ("command", "state", "words"),
    [
        ("echo kept > m; exit 3", "failed", "exited with code 3"),
        ("echo kept > m; kill -9 $$", "failed", "killed by signal 9"),
    ],
)
async def test_members_end_as_their_commands_do(
    service: Service, client: AsyncClient, local: Path, command: str, state: str, words: str
) -> None:
    made = await service.submit(**shell(command, outputs=[{"name": "m", "path": "m"}]))
    found = await service.until(made, "succeeded", "failed", seconds=60)
    assert found["state"] == state
    assert words in found["message"]
    assert [one.name for one in (await client.artifacts(made)).artifacts] == ["m"], (
        "what it has left is stored all the same"
    )


async def test_a_link_out_of_the_folder_is_not_stored(service: Service, local: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    made = await service.submit(**shell(f"ln -s {tmp_path}/secret m", outputs=[{"name": "m", "path": "m"}]))
    found = await service.until(made, "succeeded", "failed", seconds=60)
    assert found["message"].endswith("m is a symbolic link that leads out of the folder")


async def test_a_cancelled_member_ends_at_once_and_its_command_gets_the_signal_once(
    service: Service, local: Path, tmp_path: Path
) -> None:
    file = tmp_path / "signals"
    command = f"trap 'echo term >> {file}; exit 0' TERM; echo up > {file}.up; while :; do sleep 0.1; done"
    made = await service.submit(**shell(command, outputs=[{"name": "m", "path": "m"}], stopGrace="20s"))
    await eventually(partial(_exists, file.with_name("signals.up")), 30)
    await service.http.post(f"/v1/jobs/{made}/cancel")
    await service.until(made, "cancelled", seconds=15)
    assert file.read_text() == "term\n"


async def _exists(path: Path) -> bool:
    return await asyncio.to_thread(path.exists)


async def test_a_checkpoint_signal_reaches_the_command(service: Service, local: Path, tmp_path: Path) -> None:
    file = tmp_path / "saved"
    command = f"trap 'echo saved > {file}' USR1; echo up > {file}.up; while :; do sleep 0.1; done"
    made = await service.submit(
        **shell(command, outputs=[{"name": "m", "path": "m"}], checkpoint={"signal": "SIGUSR1", "wait": "5s"})
    )
    await eventually(partial(_exists, file.with_name("saved.up")), 30)
    await service.http.post(f"/v1/jobs/{made}/suspend")
    await eventually(partial(_exists, file), 15)
    await service.http.post(f"/v1/jobs/{made}/cancel")


def groups_of(state_dir: Path, made: str) -> list[int]:
    """Return the process groups of the members of all runs of a job."""
    files = state_dir.glob(f"runs/{made}-r*/processes")
    return [int(line.split()[0]) for file in files for line in file.read_text().splitlines()]


def killed(group: int) -> bool:
    """Kill a process group; return whether there was one."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


async def test_kills_at_any_moment_leave_one_artifact_of_each_name(
    service: Service, client: AsyncClient, local: Path, tmp_path: Path
) -> None:
    """Members are killed while they fetch, run and store; the job is tried again and counts once."""
    code = folder_of(tmp_path / "code", data=os.urandom(400_000))
    name = await client.upload_files("default", code)
    chance = random.Random(7)
    made = await service.submit(
        **shell(
            "cp data out; sleep 0.2",
            inputs=[{"files": name}],
            outputs=[{"name": "a", "path": "out"}, {"name": "b", "path": "data"}],
            retries={"limit": 100, "backOff": "0s"},
        )
    )
    kills = 0
    while kills < 8:
        await asyncio.sleep(chance.uniform(0.05, 1.0))
        found = await service.job(made)
        if found["state"] in ("succeeded", "failed"):
            break
        kills += sum(map(killed, groups_of(local, made)))
    found = await service.until(made, "succeeded", "failed", seconds=90)
    assert found["state"] == "succeeded", found["message"]
    assert kills, "some member was killed"
    listed = await client.artifacts(made)
    assert [one.name for one in listed.artifacts] == ["a", "b"]
    twice = await value(
        service.stores,
        "SELECT count(*) FROM (SELECT 1 FROM artifacts GROUP BY job_id, attempt, name HAVING count(*) > 1) AS n",
    )
    assert twice == 0
    await client.download_artifact(made, "a", tmp_path / "got")
    assert (tmp_path / "got/out").read_bytes() == (code / "data").read_bytes()


async def test_an_agent_that_starts_again_goes_on_with_the_files_of_its_runs(
    service: Service, client: AsyncClient, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    state_dir = tmp_path / "state"
    async with local_agent(service, state_dir):
        command = f"echo up > {go}.up; while [ ! -e {go} ]; do sleep 0.1; done; echo done > m"
        made = await service.submit(**shell(command, outputs=[{"name": "m", "path": "m"}]))
        await eventually(partial(_exists, go.with_name("go.up")), 30)
    await asyncio.to_thread(go.touch)
    await asyncio.sleep(1)  # the member looks for its agent meanwhile
    async with local_agent(service, state_dir):
        assert (await service.until(made, "succeeded", "failed", seconds=60))["state"] == "succeeded"
    assert [one.name for one in (await client.artifacts(made)).artifacts] == ["m"]


async def test_an_archive_of_another_client_that_would_write_elsewhere_is_not_extracted(
    service: Service, client: AsyncClient, agent: FakeAgent, tmp_path: Path
) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as made_by_hand:
        info = tarfile.TarInfo("../escaped")
        info.size = 1
        made_by_hand.addfile(info, io.BytesIO(b"x"))
    made, run = await started(service, agent, outputs=[{"name": "m", "path": "m"}])
    await run.store("m", file.getvalue())
    with pytest.raises(ProblemError, match="would be outside of the folder"):
        await client.download_artifact(made, "m", tmp_path / "got")
    assert not (tmp_path / "escaped").exists()


class TestOnObjectStorage:
    """Clients and members send and fetch archives at addresses of the storage; the dispatcher only verifies them."""

    @pytest.fixture
    def more_settings(self, object_storage: str, tmp_path: Path) -> dict[str, Any]:
        return {"files_store": f"s3://files/{tmp_path.name}"}

    async def test_a_folder_goes_to_members_and_results_come_back(
        self, service: Service, client: AsyncClient, local: Path, tmp_path: Path
    ) -> None:
        code = folder_of(tmp_path / "code", words=b"hello", noise=os.urandom(PART_BYTES + 10))
        name = await client.upload_files("default", code)
        outputs = [{"name": "model", "path": "noise"}]
        made = await service.submit(**shell("cat words", inputs=[{"files": name}], outputs=outputs))
        found = await service.until(made, "succeeded", "failed", seconds=60)
        assert found["state"] == "succeeded", await output_of(service, made)
        assert "hello" in await output_of(service, made)
        artifact = await client.artifact(made, "model")
        assert artifact.url is not None
        assert artifact.url.partition("?")[0].startswith("http://")
        await client.download_artifact(made, "model", tmp_path / "got")
        assert (tmp_path / "got/noise").read_bytes() == (code / "noise").read_bytes()
        said = await output_of(service, made) + (await service.http.get(f"/v1/jobs/{made}/events")).text
        assert "X-Amz" not in said + (await service.http.get(f"/v1/jobs/{made}/why")).text

    async def test_parts_are_refused_where_the_storage_has_an_address(self, service: Service) -> None:
        begun = await service.http.post("/v1/files", json={"queue": "default", "sha256": "0" * 64, "size": 4})
        assert begun.json()["url"].startswith("http://")
        answer = await service.http.put(f"/v1/files/{begun.json()['upload']}", params={"offset": 0}, content=b"data")
        assert code_of(answer) == (404, "not-found")
