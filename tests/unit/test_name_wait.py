"""Members of a gang that start once the names of their peers resolve: the container that waits, and what its script does."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit.test_kubernetes_manifests import made, role
from trainmaster_agent.runtime.kubernetes import name_wait
from trainmaster_agent.runtime.kubernetes.config import AwaitNames
from trainmaster_agent.runtime.kubernetes.environment import MOST_LISTED, ROSTER_PATH

CONFIG = AwaitNames(image="trainmaster-agent:1", timeout="30s")
GETENT = """#!/bin/sh
echo "$2" >> "$LOOKUPS"
[ "$(grep -c -x -- "$2" "$LOOKUPS")" -ge "$RESOLVES_AT" ]
"""
"""Stands for a DNS in which each name exists from the lookup ``RESOLVES_AT`` on."""


def waiting(pod: dict[str, Any]) -> dict[str, Any]:
    (found,) = (one for one in pod["spec"]["initContainers"] if one["name"] == name_wait.NAME)
    return dict(found)


class TestTheContainer:
    def test_a_gang_has_it_where_it_is_configured(self) -> None:
        pod = made(role(replicas=2), await_names=CONFIG).pod("worker", 0)
        container = waiting(pod)
        assert container["image"] == "trainmaster-agent:1"
        assert [mount["mountPath"] for mount in container["volumeMounts"]] == [ROSTER_PATH]
        assert "initContainers" not in made(role(replicas=2)).pod("worker", 0)["spec"]
        assert "initContainers" not in made(role(), await_names=CONFIG).pod("worker", 0)["spec"]

    def test_the_pod_needs_no_more_by_it_and_no_second_device(self) -> None:
        resources = {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "1"}
        pod = made(role(replicas=2, template={"resources": resources}), await_names=CONFIG).pod("worker", 0)
        own = {"cpu": "2", "memory": "1Gi"}
        assert waiting(pod)["resources"] == {"requests": own, "limits": own}

    def test_it_is_allowed_where_the_level_restricted_holds(self) -> None:
        context = waiting(made(role(replicas=2), await_names=CONFIG).pod("worker", 0))["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}

    def test_a_pod_templates_own_ones_come_after_it(self) -> None:
        main = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
        spec = {"containers": [main], "initContainers": [{"name": "data", "image": "y"}]}
        pod = made(role(replicas=2, podTemplate={"spec": spec}), await_names=CONFIG).pod("worker", 1)
        assert [one["name"] for one in pod["spec"]["initContainers"]] == [name_wait.NAME, "data"]

    def test_members_of_a_large_gang_wait_for_the_first_alone(self) -> None:
        for size, names in ((MOST_LISTED, MOST_LISTED), (MOST_LISTED + 1, 1)):
            script = waiting(made(role(replicas=size), await_names=CONFIG).pod("worker", 0))["command"][-1]
            assert f"head -n {names} {ROSTER_PATH}/addresses" in script

    @pytest.mark.parametrize("timeout", ["4s", "11m"])
    def test_the_time_has_bounds(self, timeout: str) -> None:
        with pytest.raises(ValidationError, match="5s to 10m"):
            AwaitNames(image="x", timeout=timeout)


class TestTheScript:
    @pytest.fixture
    def place(self, tmp_path: Path) -> Path:
        for name, text in (("getent", GETENT), ("sleep", "#!/bin/sh\n")):
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        (tmp_path / "addresses").write_text("worker-0.run:29500\nworker-1.run:29500\n")
        return tmp_path

    def run(self, place: Path, config: AwaitNames, resolves_at: int) -> "subprocess.CompletedProcess[str]":
        command = waiting(made(role(replicas=2), await_names=config).pod("worker", 0))["command"]
        command[-1] = command[-1].replace(ROSTER_PATH, str(place))
        env = {"PATH": f"{place}{os.pathsep}{os.environ['PATH']}", "LOOKUPS": str(place / "lookups")}
        (place / "lookups").touch()
        env["RESOLVES_AT"] = str(resolves_at)
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)

    def test_it_ends_when_all_names_resolve(self, place: Path) -> None:
        done = self.run(place, CONFIG, resolves_at=3)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert (place / "lookups").read_text().split() == 3 * ["worker-0.run"] + 3 * ["worker-1.run"]

    def test_it_says_which_name_is_missing_and_lets_the_member_start(self, place: Path) -> None:
        done = self.run(place, AwaitNames(image="x", timeout="5s"), resolves_at=10**9)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "worker-0.run has no address after 5 s; starting without it\n"
