"""A program that prints a numbered line twice a second until it is let go, and what is asserted of it."""

import re
from functools import partial

from tests.cluster.chart import JOBS
from tests.nodes.system import NodeSystem

TICKS = """
echo rank $TRAINMASTER_RANK started; i=0
while [ ! -e /tmp/end ]; do i=$((i+1)); echo tick $i; sleep 0.5; done
echo done
"""
"""Runs until somebody makes the file."""


def ticks_of(system: NodeSystem, job: str) -> int:
    """Return how far the slowest member is, as its own node has it; 0 while one has not begun."""
    names = [pod["metadata"]["name"] for pod in system.pods(job)]
    return min((system.kubectl("-n", JOBS, "logs", name, check=False).count("tick") for name in names), default=0)


def until_ticks(system: NodeSystem, job: str, more: int) -> None:
    """Wait until each member has printed ``more`` further lines."""
    before = ticks_of(system, job)
    system.until(lambda: ticks_of(system, job) >= before + more, lambda: system.describe(job), 90)


def containers_of(system: NodeSystem, job: str) -> set[str]:
    """Return the ids of the containers of a job's members: others after any restart."""
    statuses = [one for pod in system.pods(job) for one in pod["status"].get("containerStatuses", ())]
    return {one["containerID"] for one in statuses}


def end(system: NodeSystem, job: str, members: int = 1) -> None:
    """Let the programs of all members end. A kubelet or an agent that has just started may not know them yet."""
    for member in range(members):
        made = partial(system.call, "exec", f"{job}/main-{member}", "--", "touch", "/tmp/end")
        system.until(lambda made=made: made()[0] == 0, lambda made=made: made()[1], 30)  # type: ignore[misc]


def assert_whole(system: NodeSystem, job: str, members: int = 1) -> None:
    """Assert that the kept output of each member is whole: from its start to its end, without a line lost or repeated."""
    for member in range(members):
        assert_all_lines(system.output(job, "--index", str(member)), member)


def assert_all_lines(output: str, member: int = 0) -> None:
    """Assert that a member's output has each line once, in order."""
    numbers = [int(number) for number in re.findall(r"tick (\d+)", output)]
    assert numbers == list(range(1, len(numbers) + 1)), output
    assert output.count(f"rank {member} started") == 1, output
    assert output.rstrip().endswith("done"), output
