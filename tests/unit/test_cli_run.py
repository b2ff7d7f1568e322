"""``run`` and ``rerun``, options that replace parts of specifications, and specifications as the API shows them."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.unit.fake_api import SPEC, Api, connected, jobs_file, run
from tests.unit.scripted import JOB
from trainmaster.cli.run import name_of
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.states import Exit


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Api:
    monkeypatch.delenv("TRAINMASTER_QUEUE", raising=False)
    fake = connected(monkeypatch, tmp_path)
    fake.on("POST /v1/jobs", {"jobs": [{"id": JOB}]})
    return fake


def sent(api: Api) -> dict[str, Any]:
    (spec,) = api.sent("POST /v1/jobs")["jobs"]
    JobSpec.model_validate(spec)
    return dict(spec)


def test_a_command_becomes_a_job(api: Api) -> None:
    done = run("run", "--queue", "q", "--", "python", "train.py", "--lr", "3")
    assert (done.exit_code, done.stdout) == (0, f"{JOB}\n")
    template = {"command": ["python", "train.py", "--lr", "3"]}
    assert sent(api) == {
        "kind": "Job",
        "name": "train",
        "queue": "q",
        "roles": [{"name": "main", "template": template}],
    }


def test_every_option_reaches_its_field(api: Api) -> None:
    words = "--gpus 8 --cpus 4 --memory 64Gi --image img:1 --replicas 2 --queue q --name own --priority 5"
    words += " --priority-class high --label a=b --label c=d --env X=1 --env Y=2=3 --time-limit 2h --kind private --kind edge"
    words += " --start-after 1h --deadline 4h"
    run("run", *words.split(), "--cluster", "west", "sh", "-c", "true")
    resources = {"cpu": "4", "memory": "64Gi", "nvidia.com/gpu": "8"}
    template = {
        "command": ["sh", "-c", "true"],
        "image": "img:1",
        "env": {"X": "1", "Y": "2=3"},
        "resources": resources,
    }
    assert sent(api) == {
        "kind": "Job",
        "name": "own",
        "queue": "q",
        "priority": 5,
        "priorityClass": "high",
        "timeLimit": "2h",
        "startAfter": "1h",
        "deadline": "4h",
        "labels": {"a": "b", "c": "d"},
        "placement": {"kinds": ["private", "edge"], "clusters": ["west"]},
        "roles": [{"name": "worker", "replicas": 2, "template": template}],
    }


def test_artifacts_of_other_jobs_become_inputs(api: Api, tmp_path: Path) -> None:
    inputs = [{"artifact": "data", "job": JOB}, {"artifact": "model", "job": "train", "path": "in/m"}]
    options = ("--input", f"{JOB}/data", "--input", "train/model:in/m")
    assert run("run", "--queue", "q", *options, "--", "true").exit_code == 0
    assert sent(api)["inputs"] == inputs
    own = {"artifact": "own", "job": "first"}
    file = jobs_file(tmp_path, {**SPEC, "inputs": [own]})
    assert run("submit", file, *options).exit_code == 0
    assert api.sent("POST /v1/jobs")["jobs"][0]["inputs"] == [own, *inputs]


@pytest.mark.parametrize("text", ["data", "/data", "job/", "job/data:"])
def test_an_input_without_a_job_or_a_name_is_refused(api: Api, text: str) -> None:
    done = run("run", "--queue", "q", "--input", text, "--", "true")
    assert done.exit_code == Exit.USAGE
    assert "--input needs JOB/NAME or JOB/NAME:PATH" in done.stderr
    assert api.calls() == []


def test_what_is_printed_can_be_submitted(api: Api) -> None:
    printed = run("run", "--print", "--queue", "q", "--gpus", "1", "--env", "A=yes", "--", "./go", "on").stdout
    assert api.calls() == []
    assert run("submit", "-", says=printed).exit_code == 0
    assert sent(api) == yaml.safe_load(printed)


def test_without_a_queue_the_only_one_is_taken(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    api.on("GET /v1/queues", {"queues": [{"path": "a", "isLeaf": False}, {"path": "a/b", "isLeaf": True}]})
    assert run("run", "true").exit_code == 0
    assert sent(api)["queue"] == "a/b"
    api.on("GET /v1/queues", {"queues": [{"path": "a", "isLeaf": True}, {"path": "b", "isLeaf": True}]})
    done = run("run", "true")
    assert (done.exit_code, done.stderr) == (Exit.USAGE, "error: which queue? give --queue; you may use: a, b\n")
    monkeypatch.setenv("TRAINMASTER_QUEUE", "b")
    assert run("run", "true").exit_code == 0
    assert sent(api)["queue"] == "b", "a member's own queue"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("run", Exit.USAGE, "run what? trainmaster run [OPTIONS] -- COMMAND"),
        ("run --gpu 8 -- true", Exit.USAGE, "--gpus"),
        ("run --queue q --time-limit soon -- true", Exit.BAD_REQUEST, "--time-limit: 'soon' is not a duration"),
        ("run --queue q --memory 5GB -- true", Exit.BAD_REQUEST, "--memory: "),
        ("run --queue q --gpus many -- true", Exit.BAD_REQUEST, "--gpus: "),
        ("run --queue q --name Bert -- true", Exit.BAD_REQUEST, "--name: "),
        ("run --queue q --env A -- true", Exit.USAGE, "--env takes NAME=VALUE, not 'A'"),
        ("run --queue q --dry-run --wait -- true", Exit.USAGE, "--dry-run cannot be combined"),
    ],
)
def test_a_mistake_is_told_by_its_option(api: Api, words: str, code: Exit, said: str) -> None:
    done = run(*words.split())
    assert (done.exit_code, said in done.stderr) == (code, True), done.stderr
    assert api.calls() == []


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py", "train"),
        ("python3.11 -m torch.distributed.run big_model/Pre-Train.py --x", "pre-train"),
        ("/usr/bin/make all", "make"),
        ("bash -c true", "bash"),
        ("./a-very-long-name-of-a-program-indeed", "a-very-long-name-of-a-pr"),
        ("--", "job"),
        ("ÄÖÜ", "job"),
    ],
)
def test_a_job_is_named_after_its_program(command: str, name: str) -> None:
    assert name_of(command.split()) == name


def test_submit_replaces_what_files_say(api: Api, tmp_path: Path) -> None:
    roles = [{"name": "a", "template": {"env": {"X": "0", "Z": "0"}}}, {"name": "b", "podTemplate": {"spec": {}}}]
    containers = [{"name": "c", "image": "i", "env": [{"name": "X", "value": "0"}, {"name": "K", "value": "1"}]}]
    roles[1]["podTemplate"] = {"spec": {"containers": containers}}
    file = jobs_file(tmp_path, SPEC | {"labels": {"l": "0", "m": "0"}, "roles": roles})
    words = ["--name", "n", "--priority", "3", "--label", "l=1", "--env", "X=1", "--time-limit", "1h"]
    assert run("submit", file, *words).exit_code == 0
    (spec,) = api.sent("POST /v1/jobs")["jobs"]
    assert (spec["name"], spec["priority"], spec["timeLimit"]) == ("n", 3, "1h")
    assert spec["labels"] == {"l": "1", "m": "0"}
    assert spec["roles"][0]["template"]["env"] == {"X": "1", "Z": "0"}
    (container,) = spec["roles"][1]["podTemplate"]["spec"]["containers"]
    assert container["env"] == [{"name": "K", "value": "1"}, {"name": "X", "value": "1"}]


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_the_output_of_job_can_be_submitted(api: Api, form: str) -> None:
    api.has_job("failed", parameters={"lr": 0.1})
    assert run("submit", "-", says=run("job", JOB, "-o", form).stdout).exit_code == 0
    assert sent(api) == SPEC
    assert run("submit", "-", says=run("job", JOB, "--spec", "-o", form).stdout).exit_code == 0
    assert sent(api) == SPEC


def test_a_list_of_jobs_has_nothing_to_submit(api: Api) -> None:
    api.on("GET /v1/jobs", {"jobs": [{"id": JOB, "shownState": "held"}], "next": None})
    text = yaml.safe_dump([{"id": JOB, "shownState": "held", "name": "bert"}])
    done = run("submit", "-", says=text)
    assert (done.exit_code, f"trainmaster job {JOB} --spec" in done.stderr) == (Exit.USAGE, True)


def test_a_job_is_run_again_as_it_was_or_changed(api: Api) -> None:
    api.has_job("succeeded")
    assert run("rerun", JOB, "-o", "id").stdout == f"{JOB}\n"
    assert sent(api) == SPEC
    done = run("rerun", JOB, "--memory", "2Gi", "--env", "A=1", "--queue", "p", "--", "sh", "-c", "true")
    assert done.exit_code == 0, done.stderr
    template = {"command": ["sh", "-c", "true"], "args": [], "env": {"A": "1"}, "resources": {"memory": "2Gi"}}
    assert sent(api) == SPEC | {"queue": "p", "roles": [{"name": "main", "template": template}]}


def test_a_part_of_a_gpu_replaces_whole_ones_and_the_other_way_round(api: Api) -> None:
    run("run", "--queue", "q", "--gpus", "0.5", "--cpus", "2", "true")
    template = {"command": ["true"], "resources": {"cpu": "2"}, "gpu": {"fraction": "0.5"}}
    assert sent(api)["roles"] == [{"name": "main", "template": template}]
    whole = {"command": ["true"], "resources": {"nvidia.com/gpu": "2", "cpu": "1"}}
    api.has_job("succeeded", spec=SPEC | {"roles": [{"name": "main", "template": whole}]})
    run("rerun", JOB, "--gpus", "250m")
    assert sent(api)["roles"][0]["template"] == {
        "command": ["true"],
        "resources": {"cpu": "1"},
        "gpu": {"fraction": "250m"},
    }
    part = {"command": ["true"], "gpu": {"fraction": "0.5"}}
    api.has_job("succeeded", spec=SPEC | {"roles": [{"name": "main", "template": part}]})
    run("rerun", JOB, "--gpus", "1")
    assert sent(api)["roles"][0]["template"] == {"command": ["true"], "resources": {"nvidia.com/gpu": "1"}}
    assert "--gpus: " in run("run", "--queue", "q", "--gpus", "0.0", "--", "true").stderr


def test_a_wrong_option_of_a_job_that_is_run_again_is_told_by_its_name(api: Api) -> None:
    api.has_job("succeeded")
    done = run("rerun", JOB, "--memory", "8GB")
    assert done.exit_code == Exit.BAD_REQUEST
    assert "--memory: '8GB' is not a Kubernetes quantity" in " ".join(done.stderr.split())
    assert not [call for call in api.calls() if call.startswith("POST")]


def test_parts_of_one_role_are_not_changed_in_several(api: Api) -> None:
    roles = [{"name": "a", "template": {}}, {"name": "b", "template": {}}]
    api.has_job("succeeded", spec=SPEC | {"roles": roles})
    done = run("rerun", JOB, "--memory", "2Gi")
    assert (done.exit_code, "several roles: a, b" in done.stderr) == (Exit.USAGE, True)
    api.has_job("succeeded", spec=SPEC | {"roles": [{"name": "a", "podTemplate": {"spec": {}}}]})
    assert "podTemplate" in run("rerun", JOB, "--image", "x").stderr


def test_data_is_all_that_stdout_gets(api: Api) -> None:
    api.has_job("succeeded")
    lines = [
        {"note": "r1 on edge"},
        {"role": "main", "index": 0, "data": "hi\n", "offset": 0, "next": 3},
        {"end": "succeeded"},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    api.on(f"GET /v1/jobs/{JOB}/logs", lambda _: httpx.Response(200, text=text))
    for option in ("--follow", "-f", "--wait"):
        done = run("run", "--queue", "q", option, "-o", "json", "true")
        assert json.loads(done.stdout) == [{"id": JOB}]
        assert f"{JOB}  succeeded" in done.stderr
    assert run("run", "--queue", "q", "-f", "true").stdout.splitlines()[:2] == [JOB, "hi"]
