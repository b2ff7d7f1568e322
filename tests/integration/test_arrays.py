"""Arrays: their elements from the submission to their ends, through a real api, and with real workers on a local cluster."""

import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.conftest import FakeAgent, Service
from tests.integration.rows import value
from tests.integration.running_agents import running_agent
from tests.integration.test_authorization import make_key
from tests.integration.test_local_runtime import ROOMY
from tests.waiting import eventually
from trainmaster.cluster_model.capabilities import Capability
from trainmaster.protocol.states import RunState
from trainmaster_agent.arrays.server import ArrayServer, listener_of_processes
from trainmaster_agent.runtime.local.runtime import LocalRuntime

TAKES_ARRAYS = ("gang", Capability.ARRAYS, Capability.MEMBER_RESTART, Capability.RESIZE)


def role(*command: str, replicas: int = 1, **fields: Any) -> dict[str, Any]:
    template: dict[str, Any] = {"resources": {"cpu": "1"}} | ({"command": list(command)} if command else {})
    return {"name": "worker", "replicas": replicas, "template": template | fields}


@pytest.fixture
async def agent(service: Service) -> FakeAgent:
    connected = service.agent()
    await connected.connect(capabilities=TAKES_ARRAYS)
    return connected


class Elements:
    """The calls of an agent on the array of a run, and of its user."""

    def __init__(self, service: Service, agent: FakeAgent, job: str, run: str) -> None:
        self.service, self.agent, self.job, self.run = service, agent, job, run

    async def state(self, expected: int = 200) -> dict[str, Any]:
        answer = await self.agent.http.get(
            f"/agent/v1/arrays/{self.run}",
            params={"session": self.agent.session},
            headers={"Authorization": f"Bearer {self.agent.key}"},
        )
        assert answer.status_code == expected, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def push(self, expected: int = 200, **body: Any) -> dict[str, Any]:
        answer = await self.agent.http.post(
            f"/agent/v1/arrays/{self.run}",
            json={"session": self.agent.session} | body,
            headers={"Authorization": f"Bearer {self.agent.key}"},
        )
        assert answer.status_code == expected, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def shown(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.service.http.get(f"/v1/jobs/{self.job}/elements")).json()
        return found

    async def results(self, **query: Any) -> dict[str, Any]:
        answer = await self.service.http.get(f"/v1/jobs/{self.job}/elements/results", params=query)
        found: dict[str, Any] = answer.json()
        return found

    async def counts(self) -> dict[str, int]:
        found: dict[str, int] = (await self.service.job(self.job))["elements"]
        return found


async def started(service: Service, agent: FakeAgent, **array: Any) -> Elements:
    """Submit an array and report its run as running."""
    job = await service.submit(roles=[role("true")], array={"count": 10} | array)
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 1)
    return Elements(service, agent, job, run)


def failure(element: int, message: str = "no") -> dict[str, Any]:
    return {"element": element, "exitCode": 1, "message": message}


async def test_an_array_goes_only_to_clusters_that_take_arrays(service: Service) -> None:
    plain = service.agent()
    await plain.connect(capabilities=("gang", Capability.MEMBER_RESTART))
    job = await service.submit(roles=[role("true")], array={"count": 3})

    async def says_why() -> bool:
        return "arrays" in (await service.http.get(f"/v1/jobs/{job}/why")).text

    await eventually(says_why)
    await plain.connect(capabilities=TAKES_ARRAYS)
    start = await plain.next_start()
    assert start["job"] == job
    assert start["spec"]["array"] == {"count": 3}


async def test_an_array_without_a_command_goes_only_where_entry_points_of_images_are_read(service: Service) -> None:
    plain = service.agent()
    await plain.connect(capabilities=TAKES_ARRAYS)
    template = {"image": "registry.example.com/thumbs:1", "args": ["${element}"], "resources": {"cpu": 1}}
    job = await service.submit(roles=[{"name": "worker", "template": template}], array={"count": 3})

    async def says_why() -> bool:
        return "does not offer imageEntryPoints" in (await service.http.get(f"/v1/jobs/{job}/why")).text

    await eventually(says_why)
    await plain.connect(capabilities=(*TAKES_ARRAYS, Capability.IMAGE_ENTRY_POINTS))
    assert (await plain.next_start())["job"] == job


async def test_elements_are_counted_once_and_shown_as_ranges(service: Service, agent: FakeAgent) -> None:
    found = await started(service, agent)
    assert await found.counts() == {"count": 10, "succeeded": 0, "failed": 0, "cancelled": 0, "running": 0}
    report: dict[str, Any] = {"running": 2, "succeeded": [[0, 3], [5, 5]], "failed": [failure(4, "no such file")]}
    assert await found.push(**report) == {"over": False, "cancelled": []}
    assert await found.push(**report) == {"over": False, "cancelled": []}
    await found.push(running=1, succeeded=[[4, 6]], failed=[failure(0), failure(7)])
    assert await found.counts() == {"count": 10, "succeeded": 6, "failed": 2, "cancelled": 0, "running": 1}
    assert await found.shown() == {
        "job": found.job,
        "count": 10,
        "succeeded": "0-3,5-6",
        "failed": "4,7",
        "cancelled": "",
        "cut": False,
        "failures": [
            {"element": 4, "exitCode": 1, "message": "no such file"},
            {"element": 7, "exitCode": 1, "message": "no"},
        ],
    }
    state = await found.state()
    assert (state["ended"], state["count"], state["over"]) == ([[0, 7]], 10, False)


async def test_an_agent_hears_how_often_elements_are_tried_and_how_many_may_run(
    service: Service, agent: FakeAgent
) -> None:
    found = await started(service, agent, retries=2, maxRunning=3)
    state = await found.state()
    assert (state["retries"], state["maxRunning"]) == (2, 3)


async def test_no_more_elements_run_at_a_time_than_the_array_allows(
    service: Service, local: Path, tmp_path: Path
) -> None:
    """Each element counts those that run beside it by their files."""
    own = f"{tmp_path}/run-${{element}}"
    command = f"touch {own}; ls {tmp_path} | grep -c run- > $TRAINMASTER_RESULTS; sleep 0.2; rm {own}"
    job = await service.submit(
        roles=[role("sh", "-c", command, replicas=2)],
        array={"count": 12, "slots": 3, "maxRunning": 2, "results": True},
    )
    await service.until(job, "succeeded", seconds=60)
    found = (await service.http.get(f"/v1/jobs/{job}/elements/results")).json()["results"]
    assert len(found) == 12
    assert max(one["value"] for one in found) == 2


async def test_what_an_element_returned_is_kept_once(service: Service, agent: FakeAgent) -> None:
    found = await started(service, agent, results=True)
    assert await found.results() == {"job": found.job, "results": []}
    first = [{"element": 0, "value": "0.25"}, {"element": 3, "value": '{"loss":[1,null,"\u00fc"]}'}]
    for _ in range(2):
        await found.push(succeeded=[[0, 3]], results=first)
    await found.push(
        succeeded=[[0, 0], [5, 5]], results=[{"element": 0, "value": "9"}, {"element": 5, "value": "true"}]
    )
    await found.push(failed=[failure(6)], results=[{"element": 6, "value": "1"}])
    await found.push(succeeded=[[7, 7]], results=[{"element": 7, "value": "7"}] * 2)
    assert (await found.results())["results"] == [
        {"element": 0, "value": 0.25},
        {"element": 3, "value": {"loss": [1, None, "\u00fc"]}},
        {"element": 5, "value": True},
        {"element": 7, "value": 7},
    ]


async def test_results_come_in_pages(service: Service, agent: FakeAgent) -> None:
    found = await started(service, agent, count=6000, results=True)
    values = [{"element": element, "value": str(element)} for element in range(6000)]
    await found.push(succeeded=[[0, 4999]], results=values[:5000])
    await found.push(succeeded=[[5000, 5999]], results=values[5000:])
    page = await found.results()
    assert [one["element"] for one in page["results"]] == list(range(5000))
    rest = await found.results(cursor=page["next"])
    assert [one["value"] for one in rest["results"]] == list(range(5000, 6000))
    assert "next" not in rest


async def test_results_are_kept_only_where_the_array_says_so(service: Service, agent: FakeAgent) -> None:
    found = await started(service, agent)
    await found.push(succeeded=[[0, 0]], results=[{"element": 0, "value": "1"}])
    assert (await found.results())["results"] == []


@pytest.mark.parametrize("text", ["", "no json", "NaN", '"' + "x" * 1000 + '"', '"\\ud800"'])
async def test_what_is_no_result_is_refused(service: Service, agent: FakeAgent, text: str) -> None:
    found = await started(service, agent, results=True)
    await found.push(422, succeeded=[[0, 0]], results=[{"element": 0, "value": text}])
    assert (await found.counts())["succeeded"] == 0


async def test_an_array_whose_elements_have_all_succeeded_succeeds(service: Service, agent: FakeAgent) -> None:
    found = await started(service, agent)
    assert (await found.push(succeeded=[[0, 9]]))["over"]
    await agent.report(found.run, RunState.SUCCEEDED, 2)
    assert (await service.job(found.job))["state"] == "succeeded"


async def test_an_array_with_failed_elements_fails_once_and_a_retry_runs_only_these(
    service: Service, agent: FakeAgent
) -> None:
    job = await service.submit(roles=[role("true")], array={"count": 10}, retries={"limit": 5})
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 1)
    found = Elements(service, agent, job, run)
    await found.push(running=3, succeeded=[[0, 6]], failed=[failure(8), failure(9)])
    await found.push(succeeded=[[7, 7]])
    await agent.report(run, RunState.SUCCEEDED, 2)
    shown = await service.job(job)
    assert (shown["state"], shown["message"]) == ("failed", "2 of 10 elements failed (8, 9)")
    assert shown["elements"] == {"count": 10, "succeeded": 8, "failed": 2, "cancelled": 0, "running": 0}
    await agent.report(run, RunState.SUCCEEDED, 2)  # a repeated report changes nothing
    assert (await service.http.post(f"/v1/jobs/{job}/retry")).json()["state"] == "queued"
    again = Elements(service, agent, job, (await agent.next_start())["run"])
    assert (await again.state())["ended"] == [[0, 7]]
    assert (await again.shown())["failures"] == []
    await again.push(succeeded=[[8, 9]])
    await agent.report(again.run, RunState.SUCCEEDED, 2)
    assert (await service.job(job))["state"] == "succeeded"


async def test_members_that_end_before_their_elements_are_tried_again(service: Service, agent: FakeAgent) -> None:
    job = await service.submit(roles=[role("true")], array={"count": 10}, retries={"limit": 1, "backOff": "0s"})
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 1)
    await Elements(service, agent, job, run).push(succeeded=[[0, 3]])
    await agent.report(run, RunState.SUCCEEDED, 2)
    again = Elements(service, agent, job, (await agent.next_start())["run"])
    assert (await service.job(job))["runs"][0]["message"] == "its members have ended and left 6 of 10 elements"
    assert (await again.state())["ended"] == [[0, 3]]


async def test_what_a_run_that_was_preempted_has_done_counts(service: Service, agent: FakeAgent) -> None:
    found = await started(service, agent)
    await service.http.post(f"/v1/jobs/{found.job}/suspend")
    await agent.report(found.run, RunState.SUSPENDED, 2, generation=2)
    await found.state(404)
    await found.push(running=4, succeeded=[[0, 1]])
    assert await found.counts() == {"count": 10, "succeeded": 2, "failed": 0, "cancelled": 0, "running": 0}


@pytest.mark.parametrize(
    ("stop", "failed", "state"),
    [("firstFailure", True, "failed"), ({"failures": 2}, True, None), ("firstSuccess", False, "succeeded")],
)
async def test_an_array_ends_early_as_stop_on_says(
    service: Service, agent: FakeAgent, stop: Any, failed: bool, state: str | None
) -> None:
    found = await started(service, agent, stopOn=stop)
    report = {"failed": [failure(3)]} if failed else {"failed": [failure(1), failure(2)], "succeeded": [[3, 3]]}
    assert (await found.push(**report))["over"] == (state is not None)
    assert (await found.state())["over"] == (state is not None)
    if state is not None:
        await agent.report(found.run, RunState.SUCCEEDED, 2)
        assert (await service.job(found.job))["state"] == state


async def test_cancelled_elements_are_told_to_the_agent_and_are_not_failures(
    service: Service, agent: FakeAgent
) -> None:
    found = await started(service, agent)
    await found.push(succeeded=[[0, 4]])
    answer = await service.http.post(f"/v1/jobs/{found.job}/elements/cancel", json={"elements": "3-6,9"})
    assert (answer.status_code, answer.json()) == (200, {"job": found.job, "cancelled": 3})
    assert await found.push(succeeded=[[5, 5]]) == {"over": False, "cancelled": [[5, 6], [9, 9]]}
    assert (await found.push(succeeded=[[7, 8]]))["over"]
    await agent.report(found.run, RunState.SUCCEEDED, 2)
    shown = await service.job(found.job)
    assert (shown["state"], shown["elements"]["cancelled"]) == ("succeeded", 3)
    late = await service.http.post(f"/v1/jobs/{found.job}/elements/cancel", json={"elements": "1"})
    assert (late.status_code, late.json()["code"]) == (409, "wrong-state")


@pytest.mark.parametrize("elements", ["", "10", "3-1", "x", "0-3,", "-1"])
async def test_elements_that_do_not_exist_cannot_be_cancelled(
    service: Service, agent: FakeAgent, elements: str
) -> None:
    found = await started(service, agent)
    answer = await service.http.post(f"/v1/jobs/{found.job}/elements/cancel", json={"elements": elements})
    assert (answer.status_code, answer.json()["mistakes"][0]["path"]) == (422, "elements")
    assert (await found.counts())["cancelled"] == 0


async def test_a_job_that_is_no_array_has_no_elements(service: Service, agent: FakeAgent) -> None:
    job = await service.submit()
    assert "elements" not in await service.job(job)
    answers = [
        await service.http.get(f"/v1/jobs/{job}/elements"),
        await service.http.post(f"/v1/jobs/{job}/elements/cancel", json={"elements": "1"}),
    ]
    assert [(one.status_code, one.json()["code"]) for one in answers] == [(404, "not-found")] * 2


async def test_only_the_agent_of_its_cluster_hears_and_reports_of_an_array(service: Service, agent: FakeAgent) -> None:
    found = await started(service, agent)
    other = Elements(service, service.agent("public"), found.job, found.run)
    other.agent.session = "session-2"
    await other.agent.connect()
    for expected, run in ((404, found.run), (404, "no-run"), (404, "bert-7k2p9xq-r1")):
        other.run = run
        await other.state(expected)
        await other.push(expected, succeeded=[[0, 9]])
    found.agent.session = "another"
    await found.push(409, succeeded=[[0, 9]])
    assert (await found.counts())["succeeded"] == 0


async def test_who_does_not_see_the_job_neither_sees_nor_cancels_its_elements(
    service: Service, agent: FakeAgent
) -> None:
    found = await started(service, agent)
    (await service.http.put("/v1/queues/elsewhere", json={"path": "elsewhere"})).raise_for_status()
    statuses = []
    for queue in ("default", "elsewhere"):
        async with service.as_key(await make_key(service, "user", queues=[queue])) as http:
            answers = [
                await http.get(f"/v1/jobs/{found.job}/elements"),
                await http.get(f"/v1/jobs/{found.job}/elements/results"),
                await http.post(f"/v1/jobs/{found.job}/elements/cancel", json={"elements": "1"}),
            ]
            statuses.append([one.status_code for one in answers])
    assert statuses == [[200, 200, 403], [404, 404, 404]]  # who did not submit the job may not change it
    assert (await found.counts())["cancelled"] == 0


async def test_a_million_elements_take_little_space(service: Service, agent: FakeAgent) -> None:
    found = await started(service, agent, count=1_000_000)
    for first in range(0, 1_000_000, 200_000):
        await found.push(succeeded=[[first, first + 199_999]])
    assert (await found.counts())["succeeded"] == 1_000_000
    assert (await found.shown())["succeeded"] == "0-999999"
    size = "SELECT sum(pg_column_size(b.*)) FROM array_blocks b"
    assert await value(service.stores, size) < 20_000


# Real workers


def local_agent(service: Service, state_dir: Path) -> AbstractAsyncContextManager[None]:
    """Run an agent that serves workers on this machine while the block runs."""
    runtime = LocalRuntime(state_dir, ROOMY)
    return running_agent(
        service, runtime, serve_arrays=lambda client: ArrayServer(listener_of_processes(state_dir), client)
    )


@pytest.fixture
async def local(service: Service, tmp_path: Path) -> AsyncIterator[Path]:
    state_dir = tmp_path / "state"
    async with local_agent(service, state_dir):
        yield state_dir


def lines_of(file: Path) -> Counter[str]:
    return Counter(file.read_text().split()) if file.exists() else Counter()


async def has_lines(file: Path, many: int) -> bool:
    return sum(lines_of(file).values()) >= many


async def test_each_element_is_run_with_its_index_and_the_values_of_its_grid(
    service: Service, local: Path, tmp_path: Path
) -> None:
    file = tmp_path / "lines"
    command = f'echo "${{element}}:$TRAINMASTER_ELEMENT:${{rate}}:$seed" >> {file}; echo "score of ${{rate}}"'
    grid = {"rate": [0.1, 0.01], "seed": ["a", "b", "c"]}
    job = await service.submit(roles=[role("sh", "-c", command, replicas=2)], array={"grid": grid, "slots": 2})
    shown = await service.until(job, "succeeded", seconds=60)
    assert shown["elements"]["succeeded"] == 6
    values = [(rate, seed) for rate in ("0.1", "0.01") for seed in "abc"]
    assert lines_of(file) == Counter(f"{n}:{n}:{rate}:{seed}" for n, (rate, seed) in enumerate(values))
    logs = (await service.http.get(f"/v1/jobs/{job}/logs")).text
    assert all(f"[{n}] score of {rate}" in logs for n, (rate, _) in enumerate(values))


async def test_the_entry_point_of_the_image_is_executed_for_each_element(service: Service, tmp_path: Path) -> None:
    """Run it from a file that is there from the beginning; in a pod an init container leaves it."""
    file, lines, state_dir = tmp_path / "entrypoint.json", tmp_path / "lines", tmp_path / "state"
    words = {"entrypoint": ["sh", "-c", f'echo "$1:$TRAINMASTER_ELEMENT:$rate" >> {lines}', "sh"], "cmd": ["all"]}
    file.write_text(json.dumps(words))
    listener = listener_of_processes(state_dir)
    listener = replace(listener, program=replace(listener.program, entry_point=str(file)))
    runtime = LocalRuntime(state_dir, ROOMY)
    async with running_agent(service, runtime, serve_arrays=lambda client: ArrayServer(listener, client)):
        array = {"grid": {"rate": [0.1, 0.2]}}
        for args, expected in (
            (["${element}-${rate}"], {"0-0.1:0:0.1", "1-0.2:1:0.2"}),
            ([], {"all:0:0.1", "all:1:0.2"}),
        ):
            lines.unlink(missing_ok=True)
            job = await service.submit(roles=[role(image="registry.example.com/x:1", args=args)], array=array)
            shown = await service.until(job, "succeeded", seconds=60)
            assert shown["elements"]["succeeded"] == 2
            assert set(lines_of(lines)) == expected


async def test_failed_elements_are_tried_again_and_told_with_the_end_of_their_output(
    service: Service, local: Path, tmp_path: Path
) -> None:
    file = tmp_path / "lines"
    command = f'echo "${{element}}" >> {file}; [ "${{element}}" != 3 ] || {{ echo "no file 3" >&2; exit 7; }}'
    job = await service.submit(roles=[role("sh", "-c", command)], array={"count": 6, "retries": 2})
    shown = await service.until(job, "failed", seconds=60)
    assert shown["message"] == "1 of 6 elements failed (3)"
    assert lines_of(file) == Counter({str(n): 3 if n == 3 else 1 for n in range(6)})
    elements = (await service.http.get(f"/v1/jobs/{job}/elements")).json()
    assert elements["failures"] == [{"element": 3, "exitCode": 7, "message": "no file 3"}]


async def test_an_element_beyond_its_time_limit_and_a_command_that_does_not_exist_have_failed(
    service: Service, local: Path
) -> None:
    slow = await service.submit(roles=[role("sleep", "600")], array={"count": 1, "timeLimit": "300ms"})
    none = await service.submit(roles=[role("./no-such-program")], array={"count": 1})
    killed = await service.submit(roles=[role("sh", "-c", "kill -9 $$")], array={"count": 1})
    found = {}
    for job in (slow, none, killed):
        await service.until(job, "failed", seconds=60)
        (found[job],) = (await service.http.get(f"/v1/jobs/{job}/elements")).json()["failures"]
    assert found[slow] == {"element": 0, "signal": 9, "message": "its time limit of 0.3 s is over"}
    assert found[none]["exitCode"] == 127
    assert "No such file" in found[none]["message"]
    assert found[killed] == {"element": 0, "signal": 9, "message": "sh was ended by SIGKILL"}


CALLS = """
import os, sys, time

def work(element, rate=0.0):
    if element == 2:
        raise ValueError("no data for 2")
    if element == 3:
        os._exit(5)
    with open(os.environ["LINES"], "a") as lines:
        lines.write(f"{element}:{rate}:{os.environ['TRAINMASTER_ELEMENT']}\\n")
"""


async def test_a_function_is_called_for_each_element_and_a_crash_ends_only_that_call(
    service: Service, local: Path, tmp_path: Path
) -> None:
    (tmp_path / "study.py").write_text(CALLS)
    fields = {"workingDir": str(tmp_path), "env": {"LINES": str(tmp_path / "lines")}}
    job = await service.submit(
        roles=[role(replicas=1, **fields)], array={"grid": {"rate": [1, 2, 3, 4, 5, 6]}, "call": "study:work"}
    )
    await service.until(job, "failed", seconds=60)
    elements = (await service.http.get(f"/v1/jobs/{job}/elements")).json()
    assert (elements["succeeded"], elements["failed"]) == ("0-1,4-5", "2-3")
    assert lines_of(tmp_path / "lines") == Counter(f"{n}:{n + 1}:{n}" for n in (0, 1, 4, 5))
    first, second = elements["failures"]
    assert first["message"].endswith("ValueError: no data for 2\n")
    assert (second["exitCode"], second["message"]) == (5, "the process of the call ended with exit code 5")


async def test_elements_of_a_table_of_parameters_return_values_by_file_and_by_call(
    service: Service, local: Path, tmp_path: Path
) -> None:
    table = [{"rate": 0.5, "name": "a b"}, {"rate": 2, "name": "c"}]
    command = 'printf \'{"name": "%s", "rate": %s}\' "${name}" $rate > "$TRAINMASTER_RESULTS"'
    by_file = await service.submit(roles=[role("sh", "-c", command)], array={"parameters": table, "results": True})
    (tmp_path / "study.py").write_text("def work(element, rate, name):\n    return [element, rate * 2, name]\n")
    by_call = await service.submit(
        roles=[role(workingDir=str(tmp_path))], array={"parameters": table, "results": True, "call": "study:work"}
    )
    found = {}
    for job in (by_file, by_call):
        await service.until(job, "succeeded", seconds=60)
        answer = (await service.http.get(f"/v1/jobs/{job}/elements/results")).json()
        found[job] = {one["element"]: one["value"] for one in answer["results"]}
    assert found[by_file] == {0: {"name": "a b", "rate": 0.5}, 1: {"name": "c", "rate": 2}}
    assert found[by_call] == {0: [0, 1.0, "a b"], 1: [1, 4, "c"]}


async def test_cancelled_elements_that_run_are_killed_and_the_others_go_on(
    service: Service, local: Path, tmp_path: Path
) -> None:
    command = '[ "${element}" -gt 0 ] || exec sleep 600'
    job = await service.submit(roles=[role("sh", "-c", command, replicas=2)], array={"count": 20})

    async def waits_for_one() -> bool:
        counts = (await service.job(job)).get("elements", {})
        return bool(counts.get("succeeded") == 19 and counts.get("running") == 1)

    await eventually(waits_for_one, seconds=30)
    await service.http.post(f"/v1/jobs/{job}/elements/cancel", json={"elements": "0"})
    shown = await service.until(job, "succeeded", seconds=30)
    assert shown["elements"] == {"count": 20, "succeeded": 19, "failed": 0, "cancelled": 1, "running": 0}


def workers_of(job: str) -> list[int]:
    """Return the processes that are workers of a job."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        if any(word.endswith(b"arrays/worker.py") for word in words) and job.encode() in environment:
            found.append(int(folder.name))
    return found


async def test_elements_of_a_killed_member_run_again_and_each_counts_once(
    service: Service, local: Path, tmp_path: Path
) -> None:
    file = tmp_path / "lines"
    job = await service.submit(
        roles=[role("sh", "-c", f"echo ${{element}} >> {file}; sleep 0.05", replicas=2)], array={"count": 150}
    )

    async def has_done(many: int) -> bool:
        return bool((await service.job(job)).get("elements", {}).get("succeeded", 0) >= many)

    for many in (20, 60):
        await eventually(partial(has_done, many), seconds=30)
        victim = workers_of(job)[0]
        os.kill(victim, signal.SIGKILL)
    shown = await service.until(job, "succeeded", seconds=60)
    assert shown["elements"]["succeeded"] == 150
    assert set(lines_of(file)) == {str(element) for element in range(150)}


async def test_workers_go_on_without_the_agent_and_give_their_results_to_the_next_one(
    service: Service, tmp_path: Path
) -> None:
    state_dir, file = tmp_path / "state", tmp_path / "lines"
    array = {"count": 60}
    async with local_agent(service, state_dir):
        job = await service.submit(
            roles=[role("sh", "-c", f"echo ${{element}} >> {file}; sleep 0.1", replicas=2)], array=array
        )
        await eventually(lambda: has_lines(file, 10), seconds=30)
    before = workers_of(job)
    done = sum(lines_of(file).values())
    await eventually(lambda: has_lines(file, done + 1))  # nobody stops them
    async with local_agent(service, state_dir):
        assert workers_of(job) == before
        shown = await service.until(job, "succeeded", seconds=60)
    assert shown["elements"]["succeeded"] == 60
    assert lines_of(file) == Counter(str(element) for element in range(60)), "an element ran twice, or never"


async def test_a_worker_without_the_token_gets_nothing(service: Service, local: Path) -> None:
    job = await service.submit(roles=[role("sleep", "30")], array={"count": 1})
    shown = await service.until(job, "running", seconds=30)
    port = (local / "arrays-port").read_text().strip()
    body = {"member": "9", "life": "x", "call": 0, "want": 5}
    async with aiohttp.ClientSession() as session:
        statuses = []
        for run in (shown["runs"][0]["id"], "bert-7k2p9xq-r1"):
            async with session.post(
                f"http://127.0.0.1:{port}/v1/arrays/{run}", json=body, headers={"Authorization": "Bearer x"}
            ) as answer:
                statuses.append(answer.status)
    assert statuses == [401, 404]
    await service.http.post(f"/v1/jobs/{job}/cancel")
    await service.until(job, "cancelled", seconds=30)
