"""Workflows from the command line, on a real dispatcher, with a real agent that runs the members."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ADMIN_KEY, Service
from tests.integration.test_cli_commands import Shell
from tests.integration.test_sdk import local_agent
from trainmaster.protocol.states import Exit

_GIVE = "import os, sys; open(os.environ['TRAINMASTER_RESULTS'], 'w').write(sys.argv[1])"
_CHECK = """
import os, sys
print("looking for it", flush=True)
if not os.path.exists(sys.argv[1]):
    sys.exit(print("it is not there") or 3)
"""


def step(name: str, code: str, *args: str, **fields: Any) -> dict[str, Any]:
    template = {"command": ["python", "-c", code], "args": list(args), "resources": {"cpu": "100m"}}
    return {"name": name, "job": {"roles": [{"name": "main", "template": template}]}, **fields}


@pytest.fixture
async def shell(service: Service, tmp_path: Path) -> Shell:
    made = Shell(tmp_path)
    assert (await made.run("login", service.url, "--name", "here", says=f"{ADMIN_KEY}\n")).code == 0
    return made


def written(folder: Path, *steps: dict[str, Any], **fields: Any) -> str:
    path = folder / "workflow.yaml"
    document = {"kind": "Workflow", "name": "flow", "queue": "default", "steps": list(steps), **fields}
    path.write_text(yaml.safe_dump(document))
    return str(path)


async def test_a_workflow_fails_is_shown_and_resumed(service: Service, shell: Shell, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    path = written(
        tmp_path,
        step("plan", _GIVE, f'{{"path": "{flag}"}}'),
        step("check", _CHECK, "${steps.plan.results.path}", after=["plan"]),
        step("last", "pass", after=["check"]),
    )
    async with local_agent(service, tmp_path):
        ran = await shell.run("submit", "--wait", path)
        assert ran.code == Exit.JOB_FAILED, ran.errors
        flow, *lines = ran.output.splitlines()
        assert lines[-1].startswith(f"{flow}  failed after ")
        assert "plan  succeeded" in lines
        assert any(line.startswith("last  skipped  step check failed") for line in lines)
        shown = await shell.run("workflows", "show", flow)
        rows = [line.split(maxsplit=4) for line in shown.output.splitlines()]
        assert [row[0] for row in rows if row and row[0].lstrip("└─") in ("plan", "check", "last")] == [
            "plan",
            "└─check",
            "└─last",
        ]
        (details,) = [row[4] for row in rows if row and row[0] == "└─check"]
        assert re.fullmatch(r"check-\w+ on \w+: its job failed: .*code 3", details), details
        _, output = shown.output.split("its last lines:\n")
        assert output == "  looking for it\n  it is not there\n"
        assert f"trainmaster workflows resume {flow}" in shown.errors
        flag.touch()
        resumed = await shell.run("workflows", "resume", flow)
        assert (resumed.code, resumed.output) == (0, f"{flow}  running\n")
        waited = await shell.run("workflows", "wait", flow, "--timeout", "60s")
        assert waited.code == 0, waited.output
        found = (await shell.run("workflows", "list", "-o", "json")).data
        assert [(one["id"], one["state"], one["attempt"]) for one in found] == [(flow, "succeeded", 2)]
        spec = await shell.run("workflows", "show", flow, "--spec")
        text = (tmp_path / "workflow.yaml").read_text()
        assert yaml.safe_load(spec.output) == yaml.safe_load(text)


async def test_a_workflow_is_cancelled(service: Service, shell: Shell, tmp_path: Path) -> None:
    made = await shell.run("submit", "-o", "json", written(tmp_path, step("a", "pass"), step("b", "pass", after=["a"])))
    (flow,) = [one["id"] for one in made.data]
    assert (await shell.run("workflows", "cancel", flow, "--yes", "--no-cleanup")).code == 0
    waited = await shell.run("workflows", "wait", flow, "--timeout", "30s")
    assert (waited.code, waited.output.splitlines()[-1].split()[1]) == (Exit.JOB_CANCELLED, "cancelled")


async def test_mistakes_name_the_file(service: Service, shell: Shell, tmp_path: Path) -> None:
    wrong = await shell.run("submit", written(tmp_path, step("a", "pass", after=["none"])))
    assert wrong.code == Exit.BAD_REQUEST
    assert "workflow.yaml" in wrong.errors
    assert "steps[0].after[0].step" in wrong.errors
    both = await shell.run("submit", "--priority", "3", written(tmp_path, step("a", "pass")))
    assert both.code == Exit.USAGE
    assert "do not go with workflows" in both.errors
