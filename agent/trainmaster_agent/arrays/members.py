"""Members that run elements: the specification of a run of an array with the worker's program in place of the command. Pure."""

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from trainmaster.protocol.agent import StartRun
from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.jobs import JobSpec
from trainmaster_agent.arrays.worker import TASK, TOKEN, URL

_IN_POD = "/run/trainmaster/array_worker.py"
_SOURCE = Path(__file__).with_name("worker.py")


@dataclass(frozen=True, slots=True)
class WorkerProgram:
    """The worker's program in a member. ``command``: how it is started; ``files``: what has to be put into the member for that.

    ``entry_point``: the file with the entry point of the member's image, for roles without a command; empty: there is none.
    """

    command: tuple[str, ...]
    files: tuple[tuple[str, str], ...] = ()
    entry_point: str = ""


def of_processes() -> WorkerProgram:
    """Return the program for members that are processes of the agent's machine."""
    return WorkerProgram((sys.executable, "-u", str(_SOURCE)))


@cache
def of_pods(entry_point: str = "") -> WorkerProgram:
    """Return the program for members that are pods, whose image has ``python3``."""
    return WorkerProgram(("python3", "-u", _IN_POD), ((_IN_POD, _SOURCE.read_text()),), entry_point)


def with_workers(run: StartRun, url: str, token: str, program: WorkerProgram) -> StartRun:
    """Return a run of an array with members that are workers. ``url``: where they call the agent."""
    spec: dict[str, Any] = dict(run.spec)
    whole = JobSpec.model_validate(spec)
    array = whole.array
    if array is None:
        return run
    task: dict[str, Any] = {"slots": array.slots}
    if array.grid:
        task["grid"] = {name: list(values) for name, values in array.grid.items()}
    if array.parameters:
        task["parameters"] = [dict(values) for values in array.parameters]
    if array.results:
        task["results"] = True
    if array.time_limit is not None:
        task["timeLimit"] = parse_duration(array.time_limit)
    if array.call is not None:
        task["call"] = array.call
    reads_entry_point = whole.executes_entry_points and bool(program.entry_point)
    if reads_entry_point:
        task["entryPoint"] = program.entry_point
    del spec["array"]
    failure = whole.failure_of(whole.roles[0])
    (role,) = spec["roles"]
    template = dict(role["template"])
    template["command"] = [*program.command, *template.get("command", ())]
    template["env"] = template.get("env", {}) | {URL: url, TOKEN: token, TASK: orjson.dumps(task).decode()}
    if program.files:
        template["files"] = template.get("files", {}) | dict(program.files)
    spec["roles"] = [role | {"template": template, "memberFailure": failure.to_wire()}]
    return run.model_copy(update={"spec": spec, "reads_entry_point": reads_entry_point})
