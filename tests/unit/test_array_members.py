"""Members of arrays: the specification with the worker's program in place of the command, and the worker by itself."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tests.local_server import Answer, serving
from tests.waiting import eventually_sync
from trainmaster.protocol.agent import StartRun
from trainmaster.protocol.jobs import JobSpec
from trainmaster_agent.arrays import members, worker
from trainmaster_agent.arrays.worker import ElementParameters, spans_of

TEMPLATE = {"command": ["./thumb", "${element}"], "args": ["-v"], "env": {"A": "1"}, "resources": {"cpu": "1"}}


def start(**array: Any) -> StartRun:
    spec = {
        "kind": "Job",
        "name": "thumbs",
        "queue": "a",
        "roles": [{"name": "worker", "template": TEMPLATE}],
        "array": {"count": 10} | array,
    }
    return StartRun(
        run="thumbs-7k2p9xq-r1",
        job="thumbs-7k2p9xq",
        queue="a",
        attempt=1,
        token=1,
        generation=1,
        spec=spec,
        sizes={"worker": 1},
        placement_timeout_seconds=10,
    )


def test_a_worker_has_the_command_as_its_arguments_and_restarts() -> None:
    run = members.with_workers(start(slots=3, timeLimit="2s"), "http://here", "secret", members.of_processes())
    spec = JobSpec.model_validate(run.spec)
    (role,) = spec.roles
    assert role.template is not None
    assert role.template.command[-2:] == ("./thumb", "${element}")
    assert role.template.command[:2] == (sys.executable, "-u")
    assert role.template.args == ("-v",)
    assert spec.array is None
    assert spec.failure_of(role).action == "restartMember"
    env = role.template.env
    assert (env["A"], env[worker.URL], env[worker.TOKEN]) == ("1", "http://here", "secret")
    assert json.loads(env[worker.TASK]) == {"slots": 3, "timeLimit": 2.0}


def test_a_pod_gets_the_program_as_a_file() -> None:
    run = members.with_workers(start(grid={"a": [1]}, count=None), "http://here", "secret", members.of_pods())
    template = JobSpec.model_validate(run.spec).roles[0].template
    assert template is not None
    assert template.command[:3] == ("python3", "-u", "/run/trainmaster/array_worker.py")
    assert template.files == {"/run/trainmaster/array_worker.py": Path(worker.__file__).read_text()}


def of_image(**template: Any) -> StartRun:
    """Return a run whose role has an image and no command."""
    run = start()
    role = {"name": "worker", "template": {"image": "thumbs:1", "resources": {"cpu": "1"}, **template}}
    return run.model_copy(update={"spec": run.spec | {"roles": [role]}})


def test_a_worker_of_a_role_without_a_command_reads_the_entry_point_of_its_image() -> None:
    run = members.with_workers(of_image(args=["-v"]), "http://here", "secret", members.of_pods("/run/entrypoint.json"))
    template = JobSpec.model_validate(run.spec).roles[0].template
    assert template is not None
    assert template.command == ("python3", "-u", "/run/trainmaster/array_worker.py")
    assert template.args == ("-v",)
    assert json.loads(template.env[worker.TASK])["entryPoint"] == "/run/entrypoint.json"
    assert run.reads_entry_point


def test_no_entry_point_is_read_for_a_role_with_a_command_and_by_an_agent_that_reads_none() -> None:
    for run in (
        members.with_workers(start(), "http://here", "secret", members.of_pods("/run/entrypoint.json")),
        members.with_workers(of_image(), "http://here", "secret", members.of_pods()),
    ):
        assert "entryPoint" not in json.loads(run.spec["roles"][0]["template"]["env"][worker.TASK])
        assert not run.reads_entry_point


def test_a_run_that_is_no_array_is_left_as_it_is() -> None:
    run = start()
    plain = run.model_copy(update={"spec": {name: one for name, one in run.spec.items() if name != "array"}})
    assert members.with_workers(plain, "http://here", "secret", members.of_pods()) is plain


def test_the_worker_counts_elements_and_parameters_as_the_dispatcher_does() -> None:
    array = JobSpec.model_validate(start(grid={"a": [1, 2], "b": ["x", "y", "z"]}, count=None).spec).array
    assert array is not None
    grid = ElementParameters({"grid": {name: list(values) for name, values in array.grid.items()}})
    assert [grid.values_of(element) for element in range(6)] == [array.values_of(element) for element in range(6)]
    entries = [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    array = JobSpec.model_validate(start(parameters=entries, count=None).spec).array
    assert array is not None
    run = members.with_workers(start(parameters=entries, count=None), "http://here", "secret", members.of_processes())
    listed = ElementParameters(json.loads(run.spec["roles"][0]["template"]["env"][worker.TASK]))
    assert [listed.values_of(element) for element in range(2)] == [array.values_of(n) for n in range(2)] == entries
    assert spans_of({5, 1, 2, 3}) == [[1, 3], [5, 5]]


class ScriptedAgent:
    """An agent that gives some elements, and then says that there are no more. Some of its answers are lost."""

    def __init__(self, elements: int, lost: int) -> None:
        self.elements, self.lost, self.given = elements, lost, False
        self.succeeded: set[int] = set()
        self.failed: dict[int, dict[str, Any]] = {}
        self.results: dict[int, str] = {}
        self.calls: list[dict[str, Any]] = []

    def answer(self, call: dict[str, Any]) -> dict[str, Any] | None:
        self.calls.append(call)
        for batch in call["done"]:
            self.succeeded |= {e for first, last in batch["succeeded"] for e in range(first, last + 1)}
            self.failed |= {one["element"]: one for one in batch["failed"]}
            self.results |= dict(batch.get("results", ()))
        stored = call["done"][-1]["number"] if call["done"] else 0
        if len(self.calls) <= self.lost:
            return None
        if not self.given:
            self.given = True
            return {"elements": [[0, self.elements - 1]], "stored": stored}
        is_over = len(self.succeeded) + len(self.failed) == self.elements
        return {"stored": stored, "end": is_over, "wait": 0.05}


@contextmanager
def served(agent: ScriptedAgent) -> Iterator[str]:
    def answer(call: BaseHTTPRequestHandler) -> Answer:
        body = json.loads(call.rfile.read(int(call.headers["Content-Length"])))
        found = agent.answer(body) if call.headers["Authorization"] == "Bearer secret" else None
        return (503 if found is None else 200), {}, json.dumps(found or {}).encode()

    with serving(answer) as url:
        yield f"{url}/v1/arrays/run"


def run_worker(url: str, command: list[str], tmpdir: str = "/tmp", **task: Any) -> subprocess.CompletedProcess[str]:
    """Run the worker as a member does: with nothing but the standard library."""
    env = {
        "TMPDIR": tmpdir,
        "PATH": os.environ["PATH"],
        worker.URL: url,
        worker.TOKEN: "secret",
        worker.TASK: json.dumps(task),
    }
    argv = [sys.executable, "-I", "-S", "-u", worker.__file__, *command]
    return subprocess.run(argv, env=env, text=True, capture_output=True, check=False, timeout=60)


def test_a_worker_runs_each_element_once_although_answers_are_lost() -> None:
    agent = ScriptedAgent(elements=200, lost=3)
    with served(agent) as url:
        ended = run_worker(url, ["sh", "-c", "echo ${element} $TRAINMASTER_ELEMENT $TM_ARRAY_TOKEN"], slots=4)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert sorted(ended.stdout.splitlines()) == sorted(f"[{n}] {n} {n}" for n in range(200))
    assert agent.succeeded == set(range(200))
    assert {call["life"] for call in agent.calls} == {agent.calls[0]["life"]}


def test_the_entry_point_of_the_image_is_executed_with_the_arguments_or_the_images_own(tmp_path: Path) -> None:
    file = tmp_path / "entrypoint.json"
    words = {"entrypoint": ["sh", "-c", "echo ${element:-own} $TRAINMASTER_ELEMENT $@", "sh"], "cmd": ["${element}"]}
    file.write_text(json.dumps(words))
    for arguments, expected in ((["-n", "${element}"], "own {0} -n {0}"), ([], "own {0} ${{element}}")):
        agent = ScriptedAgent(elements=3, lost=0)
        with served(agent) as url:
            ended = run_worker(url, arguments, entryPoint=str(file))
        assert (ended.returncode, ended.stderr) == (0, "")
        assert sorted(ended.stdout.splitlines()) == [f"[{n}] " + expected.format(n) for n in range(3)]


def test_a_worker_without_the_file_of_the_entry_point_ends_before_it_takes_an_element(tmp_path: Path) -> None:
    agent = ScriptedAgent(elements=1, lost=0)
    with served(agent) as url:
        ended = run_worker(url, [], entryPoint=str(tmp_path / "entrypoint.json"))
    assert ended.returncode == 1
    assert ended.stderr.startswith("the entry point of the image is not known: ")
    assert "Traceback" not in ended.stderr
    assert agent.calls == []


def test_elements_without_any_command_say_so() -> None:
    agent = ScriptedAgent(elements=1, lost=0)
    with served(agent) as url:
        assert run_worker(url, []).returncode == 0
    assert agent.failed[0]["message"] == "the role has no command, and the entry point of its image is not known"


def test_what_an_element_leaves_running_is_ended_with_it() -> None:
    agent = ScriptedAgent(elements=3, lost=0)
    with served(agent) as url:
        ended = run_worker(url, ["sh", "-c", "sleep 300 & echo begun"])
    assert (ended.returncode, len(agent.succeeded)) == (0, 3)


def test_output_of_an_element_is_cut_and_the_end_of_it_explains_its_failure() -> None:
    agent = ScriptedAgent(elements=1, lost=0)
    with served(agent) as url:
        ended = run_worker(url, ["sh", "-c", "yes 0123456789 | head -c 3000000; echo at the end; exit 3"])
    assert worker.MOST_OUTPUT < len(ended.stdout) < 2 * worker.MOST_OUTPUT
    assert ended.stdout.splitlines()[-1] == "[0] (more output of this element is dropped)"
    assert agent.failed[0]["exitCode"] == 3
    assert agent.failed[0]["message"].endswith("at the end")
    assert len(agent.failed[0]["message"]) <= worker.MOST_MESSAGE


def test_what_an_element_writes_to_its_file_is_its_result() -> None:
    agent = ScriptedAgent(elements=6, lost=0)
    written = (
        'case ${element} in 0) echo "{\\"loss\\": 0.5, \\"at\\": \\"\u00fc\\"}";; 1) true;; 2) echo no json;; 3) head -c 1200'
        " /dev/zero | tr '\\0' 1;; 4) echo 99999999999999999999;; 5) echo NaN;; esac > $TRAINMASTER_RESULTS"
    )
    with served(agent) as url:
        ended = run_worker(url, ["sh", "-c", written], results=True)
    assert ended.returncode == 0, ended.stderr
    assert agent.results == {0: '{"loss":0.5,"at":"\u00fc"}'}
    assert agent.succeeded == {0, 1}
    messages = {element: one["message"] for element, one in agent.failed.items()}
    assert messages[2].startswith("its result is no JSON value: ")
    assert messages[3] == "its result has 1200 bytes as JSON, at most 1000 are kept"
    assert messages[4] == "its result has integers beyond 64 bits, or is nested deeper than 16"
    assert messages[5].startswith("its result is no JSON value: ")
    assert {one["exitCode"] for one in agent.failed.values()} == {0}


def test_the_file_of_an_element_is_not_read_for_the_next_one_and_none_is_left(tmp_path: Path) -> None:
    agent = ScriptedAgent(elements=3, lost=0)
    command = ["sh", "-c", "[ ${element} != 0 ] || echo 7 > $TRAINMASTER_RESULTS; echo $TRAINMASTER_RESULTS"]
    with served(agent) as url:
        ended = run_worker(url, command, str(tmp_path), results=True, slots=2)
    assert (agent.succeeded, agent.results) == ({0, 1, 2}, {0: "7"})
    assert str(tmp_path) in ended.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("code", "is_reported"), [("sleep 0.3; exit 0", True), ("sleep 300", False)])
def test_a_worker_that_is_stopped_reports_elements_that_end_and_leaves_the_others(
    code: str, is_reported: bool, tmp_path: Path
) -> None:
    agent = ScriptedAgent(elements=5, lost=0)
    with served(agent) as url:
        env = {"PATH": os.environ["PATH"], worker.URL: url, worker.TOKEN: "secret", worker.TASK: "{}"}
        note = f"echo >> {tmp_path}/begun; {code}"
        trap = f"trap '' TERM; {note}" if is_reported else note
        process = subprocess.Popen([sys.executable, "-I", worker.__file__, "sh", "-c", trap], env=env)
        eventually_sync((tmp_path / "begun").exists)
        process.terminate()
        assert process.wait(30) == 128 + 15
    assert bool(agent.succeeded) == is_reported
    assert not agent.failed
    assert agent.calls[-1]["held"] == []
    assert len((tmp_path / "begun").read_text()) == 1, "no other one is begun"
