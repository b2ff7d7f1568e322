"""The SDK on a real dispatcher: every verb, the examples as scripts, and submissions whose answers are lost."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml

from tests.conftest import ADMIN_KEY, Service, job
from tests.waiting import eventually
from trainmaster import AsyncClient, Client, Code, Ended, EventView, JobFilter, JobSpec, KeySpec, ProblemError
from trainmaster.protocol.states import RunState

EXAMPLES = Path(__file__).parents[2] / "examples" / "sdk"


@asynccontextmanager
async def local_agent(service: Service, folder: Path) -> AsyncIterator[None]:
    """Provide a real agent of the cluster ``private`` whose local runtime runs members as processes."""
    (folder / "key").write_text("tmk_private")
    nodes = [{"count": 2, "allocatable": {"cpu": "4", "memory": "8Gi"}}]
    (folder / "cluster.yaml").write_text(yaml.safe_dump({"nodes": nodes}))
    words: list[str | Path] = [
        "--url",
        service.url,
        "--cluster",
        folder / "cluster.yaml",
        "--state-dir",
        folder / "state",
    ]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "trainmaster.cli.main", "agent", "run", *words, "--key-file", folder / "key"
    )
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


@dataclass
class Script:
    """A script that has ended."""

    code: int | None
    output: str
    errors: str


async def run_example(service: Service, name: str, *arguments: str) -> Script:
    """Run an example as a user does: address and key come from the environment."""
    env = os.environ | {"TRAINMASTER_URL": service.url, "TRAINMASTER_API_KEY": ADMIN_KEY}
    process = await asyncio.create_subprocess_exec(
        sys.executable, EXAMPLES / name, *arguments, env=env, stdout=asyncio.subprocess.PIPE, stderr=-1
    )
    output, errors = await asyncio.wait_for(process.communicate(), 60)
    return Script(process.returncode, output.decode(), errors.decode())


async def test_a_script_submits_waits_and_says_where_the_job_ran(service: Service, tmp_path: Path) -> None:
    async with local_agent(service, tmp_path):
        done = await run_example(service, "submit_and_wait.py")
    assert done.code == 0, done
    (shown,) = (await service.http.get("/v1/jobs")).json()["jobs"]
    assert done.output.splitlines()[-1] == f"{shown['id']} succeeded on private"


async def test_a_script_that_names_no_queue_is_told_so(service: Service) -> None:
    done = await run_example(service, "submit_and_wait.py", "nowhere")
    assert (done.code, done.output) == (1, "")
    assert done.errors.startswith("not submitted: there is no queue 'nowhere'")


async def test_a_script_sweeps_over_parameters_and_gathers_the_results(service: Service, tmp_path: Path) -> None:
    async with local_agent(service, tmp_path):
        done = await run_example(service, "sweep.py")
    assert done.code == 0, done
    *trials, best = done.output.splitlines()
    assert [line.partition("  ")[2] for line in trials] == [
        "rate 0.001  layers 2  loss 2.81",
        "rate 0.001  layers 4  loss 0.81",
        "rate 0.01   layers 2  loss 2.0",
        "rate 0.01   layers 4  loss 0.0",
        "rate 0.1    layers 2  loss 83.0",
        "rate 0.1    layers 4  loss 81.0",
    ]
    assert best == "best: {'rate': 0.01, 'layers': 4}"


async def test_a_script_follows_the_output_of_its_job(service: Service, tmp_path: Path) -> None:
    async with local_agent(service, tmp_path):
        done = await run_example(service, "follow_logs.py")
    assert done.code == 0, done
    *steps, end = done.output.splitlines()
    assert steps == [f"step {number}" for number in range(5)]
    assert end.endswith(" succeeded")


async def test_an_asynchronous_script_follows_many_jobs_at_once(service: Service, tmp_path: Path) -> None:
    async with local_agent(service, tmp_path):
        done = await run_example(service, "asynchronous.py")
    assert done.code == 0, done
    assert done.output.splitlines()[-1] == ", ".join(f"square-{number} succeeded" for number in range(4))
    assert done.output.count(" run.succeeded\n") == 4


class Forgetful(httpx.HTTPTransport):
    """Loses the answers of the first requests: they reach the dispatcher, and the connection is cut."""

    def __init__(self, lost: int) -> None:
        super().__init__()
        self.lost = lost

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = super().handle_request(request)
        if self.lost == 0:
            return answer
        self.lost -= 1
        answer.read()
        raise httpx.ReadError("reset")


async def test_a_submission_whose_answer_is_lost_makes_its_jobs_once(service: Service) -> None:
    transport = Forgetful(lost=2)

    def submit() -> list[str]:
        with Client(service.url, ADMIN_KEY, transport=transport) as client:
            return client.submit([job("a"), job("b")])

    ids = await asyncio.to_thread(submit)
    assert transport.lost == 0
    async with AsyncClient(service.url, ADMIN_KEY) as client:
        assert {item.id async for item in client.jobs()} == set(ids)


async def test_the_callers_idempotency_key_holds_over_scripts_that_start_anew(service: Service) -> None:
    first = []
    for _ in range(2):
        async with AsyncClient(service.url, ADMIN_KEY) as client:
            first.append(await client.submit(job("nightly"), idempotency_key="nightly-7"))
    assert first[0] == first[1]
    async with AsyncClient(service.url, ADMIN_KEY) as client:
        with pytest.raises(ProblemError) as caught:
            await client.submit(job("other"), idempotency_key="nightly-7")
    assert (caught.value.code, caught.value.status) == (Code.IDEMPOTENCY_MISMATCH, 422)


async def test_a_watch_tells_each_transition_once_and_then_the_end(service: Service) -> None:
    agent = service.agent()
    await agent.connect()
    async with AsyncClient(service.url, ADMIN_KEY) as client:
        (job_id,) = await client.submit(JobSpec.model_validate(job()))
        watching = asyncio.create_task(collect(client, job_id))
        waiting = asyncio.create_task(client.wait([job_id], check=True))
        start = await agent.next_start()
        await agent.report(start["run"], RunState.RUNNING, 1)
        await agent.report(start["run"], RunState.SUCCEEDED, 2)
        items = await watching
        assert [item.id for item in await waiting] == [job_id]
        assert [event.seq for event in await client.events(job_id)] == [1, 2, 3, 4]
    assert [item.seq for item in items if isinstance(item, EventView)] == [1, 2, 3, 4]
    assert items[-1] == Ended("succeeded")


async def collect(client: AsyncClient, job_id: str) -> list[object]:
    return [item async for item in client.watch(job_id)]


async def test_every_verb_that_steers_a_job(service: Service) -> None:
    async with AsyncClient(service.url, ADMIN_KEY) as client:
        ids = await client.submit([job(f"a{number}", labels={"team": "x"}) for number in range(3)])
        first, *rest = ids
        wanted = JobFilter(labels={"team": "x"})
        assert [[item.id for item in page.jobs] async for page in client.pages(wanted, 2)] == [ids[:0:-1], ids[:1]]
        assert (await client.change(first, priority=7)).priority == 7
        assert (await client.bulk_change(JobFilter(name="a*"), priority=3)).changed == 3
        assert (await client.suspend(first)).state == "held"
        assert (await client.job(first)).hold_cause == "user"
        assert (await client.why(first)).token == "HeldByUser"
        assert (await client.resume(first)).changed
        assert (await client.cancel(first)).state == "cancelled"
        assert (await client.retry(first)).state == "queued"
        assert (await client.bulk("cancel", wanted, dry_run=True)).matched == 3
        assert (await client.bulk("cancel", wanted)).changed == 3
        assert [item.state for item in await client.wait(rest)] == ["cancelled", "cancelled"]
        assert [item async for item in client.logs(first)] == [Ended("cancelled")]


async def test_every_verb_of_queues_clusters_and_keys(service: Service) -> None:
    async with AsyncClient(service.url, ADMIN_KEY) as client:
        await client.put("Queue", "team", {"path": "team", "weight": 2})
        assert {queue.path: queue.weight for queue in await client.queues()} == {"default": 1.0, "team": 2.0}
        assert (await client.get_object("Queue", "team"))["weight"] == 2.0
        await client.delete("Queue", "team")
        with pytest.raises(ProblemError, match="there is no queue 'team'"):
            await client.get_object("Queue", "team")
        await client.cordon("edge")
        assert {item.name for item in await client.clusters() if item.cordoned} == {"edge"}
        await client.cordon("edge", on=False)
        assert not any(item.cordoned for item in await client.clusters())
        made = await client.make_key(KeySpec.model_validate({"name": "ci", "role": "user", "queues": ["default"]}))
        async with AsyncClient(service.url, made.key) as user:
            (job_id,) = await user.submit(job())
            with pytest.raises(ProblemError) as caught:
                await user.keys()
            assert caught.value.code is Code.FORBIDDEN
            await client.revoke_key(made.id)
            assert next(key for key in await client.keys() if key.id == made.id).revoked_at is not None

            async def refused() -> bool:
                try:
                    await user.job(job_id)
                except ProblemError as error:
                    return error.code is Code.UNAUTHENTICATED
                return False

            await eventually(refused)
