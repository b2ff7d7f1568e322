"""Members with files: the specification of a run with the program that fetches and stores them. Pure."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainmaster import archives
from trainmaster.protocol.agent import StartRun
from trainmaster.protocol.files import MemberFiles
from trainmaster_agent.files.program import TOKEN, URL

_SOURCE = Path(__file__).with_name("program.py")
_PACKAGES = Path(archives.__file__).parents[1]


def has_files(spec: Mapping[str, Any]) -> bool:
    """Return whether the members of a run with this specification get files, or leave some."""
    return bool(spec.get("inputs") or spec.get("outputs"))


def in_pods(run: StartRun, url: str, token: str) -> StartRun:
    """Return a run whose pods get containers for their files. ``url``: where these call the agent."""
    return run.model_copy(update={"member_files": MemberFiles(url=url, token=token)})


def in_processes(run: StartRun, url: str, token: str) -> StartRun:
    """Return a run whose members are processes that fetch and store their files themselves, around their commands."""
    spec: dict[str, Any] = {name: value for name, value in run.spec.items() if name not in ("inputs", "outputs")}
    program = [sys.executable, "-I", str(_SOURCE), "run", "--packages", str(_PACKAGES), "--"]
    roles = []
    for role in spec["roles"]:
        template = dict(role["template"])
        template["command"] = [*program, *template.get("command", ())]
        template["env"] = template.get("env", {}) | {URL: url, TOKEN: token}
        roles.append(role | {"template": template})
    return run.model_copy(update={"spec": spec | {"roles": roles}})
