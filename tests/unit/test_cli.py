"""The command line: submitting, staying with jobs, errors and their exit codes, and whom it talks to."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.unit.fake_api import OTHER, SPEC, Api, connected, jobs_file, run
from tests.unit.scripted import JOB, problem
from trainmaster.cli import config
from trainmaster.cli.errors import exit_of
from trainmaster.protocol.errors import Code, Mistake
from trainmaster.protocol.states import Exit


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Api:
    return connected(monkeypatch, tmp_path)


# Submitting


def test_a_submission_prints_the_id_and_the_exact_next_commands(api: Api, tmp_path: Path) -> None:
    api.on("POST /v1/jobs", {"jobs": [{"id": JOB}]})
    done = run("submit", jobs_file(tmp_path, SPEC))
    assert done.exit_code == Exit.SUCCEEDED
    assert done.stdout == f"{JOB}\n"
    for command in ("why", "watch", "logs -f", "cancel"):
        assert f"trainmaster {command} {JOB}\n" in done.stderr


def test_settings_and_overrides_reach_the_dispatcher(api: Api, tmp_path: Path) -> None:
    api.on("POST /v1/jobs", {"jobs": [{"id": JOB}, {"id": OTHER}]})
    text = 'name: a\nqueue: x\nroles: [{name: m, template: {command: [sh, "@HERE@/run", on]}}]'
    file = jobs_file(tmp_path, text, text)
    done = run("submit", file, "--set", "HERE=/x=y", "--queue", "q", "--priority-class", "urgent", "-o", "json")
    assert json.loads(done.stdout) == [{"id": JOB}, {"id": OTHER}]
    first, second = api.sent("POST /v1/jobs")["jobs"]
    assert first == second
    assert (first["queue"], first["priorityClass"]) == ("q", "urgent")
    assert first["roles"][0]["template"]["command"] == ["sh", "/x=y/run", "on"]


def test_a_setting_that_nothing_uses_is_a_mistake_and_so_is_one_that_is_missing(api: Api, tmp_path: Path) -> None:
    api.on("POST /v1/jobs", {"jobs": [{"id": JOB}]})
    file = jobs_file(tmp_path, SPEC | {"name": "@NAME@"})
    assert run("submit", file, "--set", "OTHER=1").exit_code == Exit.USAGE
    done = run("submit", file)
    assert (done.exit_code, api.calls()) == (Exit.USAGE, [])
    assert done.stderr.replace("\n  ", " ") == (
        f"error: {file}: @NAME@ has no value; give one with --set NAME=VALUE, or keep a text as it is with --set NAME=@NAME@\n"
    )
    assert run("apply", "-f", file, "--dry-run").exit_code == Exit.USAGE
    assert run("submit", file, "--set", "NAME=@NAME@").exit_code == 0
    assert api.sent("POST /v1/jobs")["jobs"][0]["name"] == "@NAME@"


def test_a_setting_that_only_a_comment_names_needs_no_value(api: Api, tmp_path: Path) -> None:
    api.on("POST /v1/jobs", {"jobs": [{"id": JOB}]})
    (tmp_path / "job.yaml").write_text(f"# with --set NAME=x: @NAME@\n{json.dumps(SPEC)}\n")
    assert run("submit", str(tmp_path / "job.yaml")).exit_code == 0


def test_mistakes_are_told_by_file_and_document(api: Api, tmp_path: Path) -> None:
    mistakes = (
        Mistake(path="jobs[1].roles[0].name", message="a name has at most 12 characters"),
        Mistake(path="jobs[1]", message="minMember 3 is more than the 1 members of the roles"),
    )
    detail = "2 mistakes; the first: jobs[1].roles[0].name: a name has at most 12 characters"
    api.on("POST /v1/jobs", problem(Code.INVALID_SPEC, detail, mistakes=mistakes))
    file = jobs_file(tmp_path, SPEC, SPEC)
    done = run("submit", file)
    assert done.exit_code == Exit.BAD_REQUEST
    assert f"  {file} document 2: roles[0].name: a name has at most 12 characters\n" in done.stderr
    assert f"  {file} document 2: minMember 3 is more than the 1 members of the roles\n" in done.stderr
    assert "jobs[1]" not in done.stderr


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("kind: Queue\npath: a", Exit.BAD_REQUEST, "trainmaster apply -f FILE"),
        ("a: [", Exit.BAD_REQUEST, "stdin: line 2, column 1"),
        ("", Exit.BAD_REQUEST, "stdin is empty: it holds no specification"),
        ("just words", Exit.BAD_REQUEST, "a specification has to be a mapping, this is 'just words'"),
    ],
)
def test_what_is_no_job_is_refused_before_anything_is_sent(api: Api, text: str, code: Exit, said: str) -> None:
    done = run("submit", "-", says=text + "\n")
    assert done.exit_code == code
    assert said in done.stderr
    assert api.calls() == []


def test_a_file_that_is_not_there_is_a_usage_error(api: Api) -> None:
    done = run("submit", "/nowhere.yaml")
    assert (done.exit_code, done.stderr) == (
        Exit.USAGE,
        "error: cannot read /nowhere.yaml: No such file or directory\n",
    )


def test_submit_and_wait_exits_with_the_worst_outcome(api: Api, tmp_path: Path) -> None:
    api.on("POST /v1/jobs", {"jobs": [{"id": JOB}, {"id": OTHER}]})
    api.has_job("failed", message="exit 3")
    api.has_job("succeeded", OTHER)
    done = run("submit", jobs_file(tmp_path, SPEC, SPEC), "--wait")
    assert done.exit_code == Exit.JOB_FAILED
    assert f"{JOB}  failed: exit 3\n{OTHER}  succeeded\n" in done.stdout


def test_a_table_of_parameters_goes_with_its_job(api: Api, tmp_path: Path) -> None:
    api.on("POST /v1/jobs", {"jobs": [{"id": JOB}, {"id": OTHER}]})
    for name, text in {
        "t.csv": "lr,seed\n0.1,1\n0.2,2\n",
        "t.yaml": "- {lr: '0.1', seed: '1'}\n- {lr: '0.2', seed: '2'}\n",
    }.items():
        (tmp_path / name).write_text(text)
        done = run("submit", jobs_file(tmp_path, SPEC), "--parameters", str(tmp_path / name), "--queue", "other")
        assert (done.exit_code, done.stdout) == (0, f"{JOB}\n{OTHER}\n")
        sets = [{"lr": "0.1", "seed": "1"}, {"lr": "0.2", "seed": "2"}]
        assert api.sent("POST /v1/jobs") == {"job": SPEC | {"queue": "other"}, "parameters": sets}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", "lr,seed\n1,2\n3\n", "line 3 has 1 value, and the first line has 2 names"),
        ("t.csv", "lr;seed\n1;2\n", "line 1: columns are separated by commas, here there are semicolons: 'lr;seed'"),
        ("t.csv", "lr\tseed\n1\t2\n", "line 1: columns are separated by commas, here there are tabs"),
        ("t.csv", "lr\n", "it has no parameter set"),
        ("t.yaml", "lr: 1", "a list of mappings"),
        ("t.yaml", "[", "line 1, column 2: a value is missing"),
        ("gone.csv", None, "No such file"),
    ],
)
def test_a_table_that_cannot_be_read_is_a_usage_error(
    api: Api, tmp_path: Path, name: str, text: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    done = run("submit", jobs_file(tmp_path, SPEC), "--parameters", str(tmp_path / name))
    assert done.exit_code == Exit.USAGE
    assert message in done.stderr
    assert api.calls() == []


def test_a_mistake_of_a_table_is_told_with_its_file_and_row(api: Api, tmp_path: Path) -> None:
    mistakes = (
        Mistake(path="parameters[0].sead", message="nothing has it"),
        Mistake(path="parameters[3]", message="x"),
    )
    api.on("POST /v1/jobs", problem(Code.INVALID_SPEC, mistakes=mistakes))
    (tmp_path / "t.csv").write_text("sead\n1\n")
    done = run("submit", jobs_file(tmp_path, SPEC), "--parameters", str(tmp_path / "t.csv"))
    said = " ".join(done.stderr.split())
    assert done.exit_code == Exit.BAD_REQUEST
    assert f"{tmp_path}/t.csv row 1: sead: nothing has it" in said
    assert f"{tmp_path}/t.csv row 4: x" in said


def test_following_takes_one_job(api: Api, tmp_path: Path) -> None:
    done = run("submit", jobs_file(tmp_path, SPEC, SPEC), "--follow")
    assert done.exit_code == Exit.USAGE
    assert api.calls() == []


# Staying with jobs


@pytest.mark.parametrize(
    ("state", "code"),
    [("succeeded", Exit.SUCCEEDED), ("failed", Exit.JOB_FAILED), ("cancelled", Exit.JOB_CANCELLED)],
)
def test_a_watch_shows_transitions_and_exits_as_the_job_did(api: Api, state: str, code: Exit) -> None:
    event = {"seq": 2, "at": "2026-01-01T00:00:00Z", "kind": f"run.{state}", "states": ["running", state], "attempt": 1}
    event |= {"cluster": "edge", "details": {"job": state, "exitCode": 3}}
    text = f"id: 2\nevent: x\ndata: {json.dumps(event)}\n\nevent: end\ndata: {state}\n\n"
    api.on(f"GET /v1/jobs/{JOB}/events", httpx.Response(200, text=text))
    api.has_job(state)
    done = run("watch", JOB)
    assert done.exit_code == code
    assert f"  {state:<14}  on edge, run 1, running > {state}, exit code 3\n" in done.stdout


def test_ctrl_c_detaches_says_how_to_come_back_and_leaves_the_job_alone(api: Api) -> None:
    class Pressed(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield b": hello\n\n"
            raise KeyboardInterrupt

    api.on(f"GET /v1/jobs/{JOB}/events", lambda _: httpx.Response(200, stream=Pressed()))
    done = run("watch", JOB)
    assert done.exit_code == Exit.NOT_FINISHED
    assert f"trainmaster watch {JOB}" in done.stderr
    assert api.calls() == [f"GET /v1/jobs/{JOB}/events"]


def test_a_watch_of_a_filter_names_the_job_of_each_transition(api: Api) -> None:
    class Pressed(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            event = {"job": OTHER, "queue": "a", "seq": 2, "at": "2026-01-01T00:00:00Z", "kind": "run.failed"}
            event |= {"position": "p1", "details": {"job": "failed"}, "cluster": "edge", "message": "no disk"}
            yield f"id: p1\nevent: run.failed\ndata: {json.dumps(event)}\n\n".encode()
            raise KeyboardInterrupt

    api.on("GET /v1/events", lambda _: httpx.Response(200, stream=Pressed()))
    done = run("watch", "--queue", "research", "--state", "failed", "--kind", "run.failed")
    assert done.exit_code == Exit.SUCCEEDED, done.output
    assert f"  {OTHER:<20}  failed          on edge, no disk\n" in done.stdout
    assert api.requests[-1].url.query == b"queue=research&state=failed&kind=run.failed"
    assert run("watch", "--all").exit_code == Exit.SUCCEEDED
    for wrong in ((), (JOB, "--all"), (JOB, "--queue", "a")):
        assert "trainmaster watch ID, or a filter" in run("watch", *wrong).stderr


def test_waiting_for_several_goes_on_past_a_missing_one(api: Api) -> None:
    api.has_job("succeeded", OTHER)
    api.on(f"GET /v1/jobs/{JOB}", problem(Code.NOT_FOUND, f"there is no job '{JOB}'"))
    done = run("wait", JOB, OTHER)
    assert done.exit_code == Exit.NOT_FOUND
    assert done.stdout == f"{OTHER}  succeeded\n"
    assert done.stderr == f"error: there is no job '{JOB}'\n"


def test_a_wait_for_jobs_that_do_not_exist_is_no_success(api: Api) -> None:
    api.on("GET /v1/jobs", {"jobs": [], "next": None})
    mistyped = run("wait", "--name", "bret*")
    assert (mistyped.exit_code, mistyped.stdout, mistyped.stderr) == (Exit.NOT_FOUND, "", "error: no job matches\n")
    none_left = run("wait", "--name", "bert*", "--state", "running")
    assert (none_left.exit_code, none_left.stderr) == (Exit.SUCCEEDED, "no job matches\n")
    assert run("wait", "--state", "running", "-o", "json").stdout == "[]\n", "programs read a list"


@pytest.mark.parametrize("option", ["--url", "--key", "--context"])
def test_an_option_of_all_commands_stands_before_the_command(option: str) -> None:
    done = run("jobs", option, "x")
    assert done.exit_code == Exit.USAGE
    assert f"{option} stands before the command: trainmaster {option} VALUE COMMAND" in done.stderr
    assert "Possible options" not in done.stderr


def test_a_wait_that_takes_too_long_says_so(api: Api) -> None:
    api.has_job("running")
    done = run("wait", JOB, "--timeout", "0s")
    assert (done.exit_code, done.stdout) == (Exit.NOT_FINISHED, f"{JOB}  running (not finished)\n")
    assert run("wait", JOB, "--timeout", "soon").exit_code == Exit.USAGE


def test_a_job_that_can_never_start_is_told_while_it_is_waited_for(api: Api) -> None:
    sentence = "It needs 14 CPUs on one cluster, the largest has 8."
    api.has_job("queued")
    reason = {"job": JOB, "state": "queued", "token": "TooLarge", "tier": "cannot run as written", "sentence": sentence}
    api.on(f"GET /v1/jobs/{JOB}/events", httpx.Response(200, text=": nothing new\n\n"))
    api.on(f"GET /v1/jobs/{JOB}/why", reason)
    done = run("wait", JOB, "--timeout", "20s")
    assert (done.exit_code, done.stderr) == (Exit.NOT_FINISHED, f"{JOB} cannot start: {sentence}\n")
    api.on(f"GET /v1/jobs/{JOB}/why", reason | {"token": "InsufficientCapacity", "tier": "capacity"})
    assert run("wait", JOB, "--timeout", "20s").stderr == ""


def log_lines(*pieces: tuple[int, str]) -> httpx.Response:
    values = [{"note": "r1 on edge", "run": "r1"}, *({"role": "main", "index": i, "data": text} for i, text in pieces)]
    return httpx.Response(200, text="".join(json.dumps(value) + "\n" for value in values))


def test_lines_of_several_members_are_told_apart_and_never_mixed(api: Api) -> None:
    spec = SPEC | {"roles": [{"name": "main", "replicas": 2, "template": {}}]}
    api.has_job("running", spec=spec)
    api.on(f"GET /v1/jobs/{JOB}/logs", log_lines((0, "a\nb"), (1, "c\n"), (0, "d\n"), (1, "rest")))
    done = run("logs", JOB)
    assert done.stdout == "main-0 | a\nmain-1 | c\nmain-0 | bd\nmain-1 | rest\n"
    assert done.stderr == "r1 on edge\n"
    api.on(f"GET /v1/jobs/{JOB}/logs", log_lines((1, "c\n")))
    assert run("logs", JOB, "--index", "1").stdout == "c\n"


def test_output_before_a_restart_that_was_none_is_said_to_be_none(api: Api) -> None:
    api.has_job("running")
    api.on(f"GET /v1/jobs/{JOB}/logs", log_lines())
    assert run("logs", JOB).stderr == "r1 on edge\n"
    done = run("logs", JOB, "--previous")
    assert (done.exit_code, done.stderr.splitlines()[1:]) == (
        0,
        [f"no output of {JOB} from before a restart of a member"],
    )
    api.on(f"GET /v1/jobs/{JOB}/logs", log_lines((0, "a\n")))
    assert run("logs", JOB, "--previous").stderr == "r1 on edge\n"


# Errors and the context


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        (Code.BAD_ID, Exit.NOT_FOUND),
        (Code.INVALID_SPEC, Exit.BAD_REQUEST),
        (Code.UNAUTHENTICATED, Exit.DENIED),
        (Code.FORBIDDEN, Exit.DENIED),
        (Code.WRONG_STATE, Exit.CONFLICT),
        (Code.QUEUE_FULL, Exit.CONFLICT),
        (Code.STORE_AWAY, Exit.STORE_AWAY),
        (Code.INTERNAL, Exit.INTERNAL),
    ],
)
def test_each_kind_of_problem_has_its_exit_code(code: Code, exit_code: Exit) -> None:
    assert exit_of(code) is exit_code


def test_an_unreachable_dispatcher_is_told_in_two_lines(api: Api) -> None:
    api.on("GET /v1/jobs", httpx.ConnectError("[Errno 111] Connection refused"))
    done = run("jobs")
    assert done.exit_code == Exit.UNREACHABLE
    assert done.stderr.startswith("error: cannot reach http://dispatcher.test: connection refused\n")


def test_an_error_that_nobody_foresaw_is_a_sentence_too(api: Api) -> None:
    api.on("GET /v1/jobs", {"surprise": True})
    api.on("GET /v1/queues", {"surprise": True})
    assert run("jobs").exit_code == Exit.UNREACHABLE
    done = run("queues")
    assert (done.exit_code, done.stderr.count("Traceback")) == (Exit.INTERNAL, 0)


def test_the_key_of_the_file_goes_to_no_other_address(api: Api) -> None:
    done = run("--url", "http://elsewhere.test", "jobs")
    assert done.exit_code == Exit.USAGE
    assert "no API key for http://elsewhere.test" in done.stderr
    assert api.calls() == []


def test_flags_come_before_the_environment_and_that_before_the_file(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    api.on("GET /v1/jobs", {"jobs": [], "next": None})
    monkeypatch.setenv("TRAINMASTER_API_KEY", "tmk_env")
    run("jobs")
    run("--url", "http://flag.test", "--key", "tmk_flag", "jobs")
    sent = [(request.url.host, request.headers["authorization"]) for request in api.requests]
    assert sent == [("dispatcher.test", "Bearer tmk_env"), ("flag.test", "Bearer tmk_flag")]


@pytest.mark.parametrize("text", ["url: [", "- a", "url: 3", "url: ftp://x\nkey: k", ""])
def test_a_context_that_cannot_be_used_is_a_usage_error(api: Api, text: str) -> None:
    config.config_path().write_text(text)
    assert run("jobs").exit_code == Exit.USAGE


def test_the_context_is_for_its_owners_eyes_only(api: Api) -> None:
    assert config.config_path().stat().st_mode & 0o777 == 0o600
    assert [path.name for path in config.config_path().parent.iterdir()] == ["config.yaml"]


def test_a_reader_that_goes_away_ends_the_command_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "trainmaster.cli.main", "version"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def run_installed(words: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a command with those of dispatcher and agent, in a folder."""
    command = [sys.executable, "-m", "trainmaster.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


def test_a_backup_names_the_folder_that_does_not_exist(tmp_path: Path) -> None:
    words = ["backup", "--data", str(tmp_path), "--out", str(tmp_path / "none" / "a.backup")]
    done = run_installed(words, tmp_path)
    assert done.returncode == Exit.USAGE
    assert f"there is no folder {tmp_path / 'none'}; choose another file with --out" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--kubeconfig", "k"), "--kubeconfig and --context are of --kubernetes; leave them out"),
        (("--context", "c"), "--kubeconfig and --context are of --kubernetes; leave them out"),
        (("--key-file", "EMPTY"), "EMPTY: the API key is empty; a key looks like tmk_..."),
        ((), "give the agent's API key with --key-file or TRAINMASTER_API_KEY"),
    ],
)
def test_an_agent_says_which_option_is_wrong(
    more: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRAINMASTER_API_KEY", raising=False)
    (tmp_path / "EMPTY").touch()
    where = ("--url", "http://127.0.0.1:1", "--cluster", "cluster.yaml", "--state-dir", "state")
    done = run_installed(["agent", "run", *where, *more], tmp_path)
    assert (done.returncode, says in " ".join(done.stderr.split())) == (Exit.USAGE, True), done.stderr


@pytest.mark.parametrize("command", ["up", "backup", "restore x", "doctor", "support-bundle"])
def test_an_empty_data_folder_is_not_the_current_one(command: str, tmp_path: Path) -> None:
    for given, variables in ((["--data", ""], {}), ([], {"TRAINMASTER_DATA": " "})):
        words = [sys.executable, "-m", "trainmaster.cli.main", *command.split(), *given]
        env = os.environ | {"HOME": str(tmp_path)} | variables
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path, env=env)
        assert done.returncode == Exit.USAGE
        assert "it is empty; name the folder of" in " ".join(done.stderr.split())
    assert not list(tmp_path.iterdir())


def test_help_and_version_import_nothing_heavy() -> None:
    code = "import sys, trainmaster.cli.main; print(*(m for m in ('httpx', 'pydantic', 'yaml', 'rich') if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_commands_of_other_distributions_import_no_driver_of_a_database() -> None:
    """An agent's process has them as well, where the dispatcher is installed beside it."""
    code = """
import sys, typer, trainmaster_dispatcher.cli as cli
cli.register(typer.Typer())
print(*(m for m in ('sqlalchemy', 'psycopg', 'fastapi', 'celery') if m in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
