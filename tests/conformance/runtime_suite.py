"""What every runtime must do: one suite, run on the local and on the simulated runtime.

A subclass provides the fixture ``lab``, which knows how its runtime is opened, how members are told what to do and how to see
whether they live. Every lab has the same cluster: two nodes of 4 CPU and 8 GiB each.
"""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Protocol

import pytest

from trainmaster.cluster_model.capabilities import Capability
from trainmaster.protocol.agent import ResizeRun, StartRun, StopRun
from trainmaster.protocol.member_streams import (
    COMMANDS,
    Channel,
    MemberStreamKind,
    MemberStreamOptions,
    OpenMemberStream,
    exit_code_of,
    frame,
)
from trainmaster.protocol.states import FailureCategory, RunState, StopCause
from trainmaster_agent.runtime.port import MemberStream, RunStatus, Runtime, StreamRefusedError, UseReading
from trainmaster_agent.streams import offset_of_lines

PATIENCE = 60.0
"""Seconds after which a condition that should come true at once is given up."""


class Does(Enum):
    """What a member does."""

    SUCCEED = auto()
    EXIT = auto()
    DIE_BY_SIGNAL = auto()
    PRINT = auto()
    RETURN = auto()
    """Leaves the text as results if it may, and exits with the code."""
    RUN = auto()
    """Runs until it is asked to end; it then ends at once, with an error."""
    RUN_STUBBORNLY = auto()
    """Runs until it is killed: it ignores SIGTERM."""
    LEAVE_IN_PEACE = auto()
    """Runs until it is asked to end, and then succeeds."""
    SAVE_STATE = auto()
    """Runs until it is asked to end; at the signal to save its state it says so and goes on."""
    WAIT_FOR_GATE = auto()
    """Succeeds once the lab opens the gate of its run."""
    FAIL_AT_FIRST = auto()
    """Exits with the code at each of its first ``times`` starts in a run, alone or with all; succeeds at the next. For roles of one
    member."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """A member's behaviour, for the lab to translate."""

    does: Does
    code: int = 0
    """The exit code or the signal."""
    text: str = ""
    times: int = 0


SUCCEEDS = Behaviour(Does.SUCCEED)
RUNS = Behaviour(Does.RUN)
STUBBORN = Behaviour(Does.RUN_STUBBORNLY)
PEACEFUL = Behaviour(Does.LEAVE_IN_PEACE)
SAVES = Behaviour(Does.SAVE_STATE)
WAITS_FOR_GATE = Behaviour(Does.WAIT_FOR_GATE)


def exits(code: int) -> Behaviour:
    return Behaviour(Does.EXIT, code)


def dies_by(signal: int) -> Behaviour:
    return Behaviour(Does.DIE_BY_SIGNAL, signal)


def fails_at_first(times: int, code: int = 3) -> Behaviour:
    return Behaviour(Does.FAIL_AT_FIRST, code, times=times)


def prints(text: str) -> Behaviour:
    return Behaviour(Does.PRINT, text=text)


def returns(text: str, code: int = 0) -> Behaviour:
    return Behaviour(Does.RETURN, code, text)


class Lab(Protocol):
    """What a subclass provides."""

    @property
    def runtime(self) -> Runtime:
        """The runtime that is open now."""
        ...

    async def restart(self) -> None:
        """Drop the runtime and open another one on the same records; members notice nothing."""
        ...

    def template(self, run: str, behaviour: Behaviour) -> dict[str, Any]:
        """Return a member's template, in wire form, that makes it behave so."""
        ...

    def open_gate(self, run: str) -> None: ...

    def living(self, run: str) -> int:
        """Return how many members of the run live, as the world and not as the runtime sees it."""
        ...

    def ready(self, run: str) -> int:
        """Return how many members behave as told by now; before that a stubborn one may still stop when asked."""
        ...

    def now(self) -> float:
        """Return the clock that ``Runtime.renew`` counts on."""
        ...


@dataclass(frozen=True, slots=True)
class Part:
    """One role of a run under test."""

    behaviour: Behaviour
    count: int = 1
    cpu: str = "1"
    name: str = "worker"
    extra: dict[str, Any] = field(default_factory=dict)
    """Further fields of the template."""
    of_role: dict[str, Any] = field(default_factory=dict)
    """Further fields of the role."""


async def eventually(condition: Callable[[], bool], what: str, within: float = PATIENCE) -> None:
    """Wait until ``condition`` holds; ``what`` it is appears in the failure. The only place where these tests let time pass."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"not within {within:g} s: {what}"
        await asyncio.sleep(0.005)


async def until(lab: Lab, run: str, condition: Callable[[RunStatus], bool], within: float = PATIENCE) -> RunStatus:
    """Return the status of ``run`` once it meets ``condition``, looking again when the runtime reports a change."""
    deadline = time.monotonic() + within
    while True:
        status = lab.runtime.held()[run]
        if condition(status):
            return status
        left = deadline - time.monotonic()
        assert left > 0, f"not within {within:g} s; the last status is {status}"
        await lab.runtime.wait_changed(min(left, 1.0))


async def until_living(lab: "Lab", run: str, count: int) -> None:
    """Wait until as many members of a run are alive: their processes may be seen a moment after their state."""
    await eventually(lambda: lab.living(run) == count, f"{count} members are alive")


async def until_state(lab: Lab, run: str, state: RunState, within: float = PATIENCE) -> RunStatus:
    return await until(lab, run, lambda status: status.state is state, within)


async def until_over(lab: Lab, run: str, within: float = PATIENCE) -> RunStatus:
    return await until(lab, run, lambda status: status.state.is_terminal, within)


def start_run(
    lab: Lab,
    run: str,
    *parts: Part,
    placement_timeout: float = 60.0,
    disconnect: float | None = None,
    **spec: Any,
) -> StartRun:
    """Return the order to start a run made of ``parts``; ``spec`` has further fields of the specification, in wire form."""
    job = run.rpartition("-r")[0]
    roles = [
        {
            "name": part.name,
            "replicas": part.count,
            "template": {"resources": {"cpu": part.cpu}, **lab.template(run, part.behaviour), **part.extra},
            **part.of_role,
        }
        for part in parts
    ]
    return StartRun(
        run=run,
        job=job,
        queue="org/team",
        attempt=1,
        token=1,
        generation=1,
        spec={"name": "test", "queue": "org/team", "roles": roles, **spec},
        sizes={part.name: part.count for part in parts},
        placement_timeout_seconds=placement_timeout,
        disconnect_seconds=disconnect,
    )


def stop_run(
    run: str, cause: StopCause = StopCause.CANCEL, grace: float = 10.0, generation: int = 2, *, save: float = 0.0
) -> StopRun:
    """Return the order to stop a run. ``save``: seconds that members have to save their state before they are asked to end."""
    return StopRun(
        run=run,
        generation=generation,
        cause=cause,
        grace_seconds=grace,
        checkpoint_seconds=save,
        checkpoint_signal="SIGUSR1" if save else "",
    )


def resize_run(run: str, size: int, generation: int = 2, grace: float = 10.0) -> ResizeRun:
    return ResizeRun(run=run, generation=generation, sizes={"worker": size}, grace_seconds=grace)


def placed(status: RunStatus) -> int:
    """Return how many members have places, those that still have to leave included."""
    return sum(count for roles in (status.placement or {}).values() for count in roles.values())


def restarts(status: RunStatus, role: str = "worker") -> list[int]:
    """Return how often each member of a role has restarted."""
    return [one.restarts for one in status.members if one.role == role]


def has_failed_once(lab: Lab, run: str) -> bool:
    """Return whether the only member of a run has ended, and waits to restart."""
    members = lab.runtime.held()[run].members
    is_known = lab.runtime.held()[run].state is RunState.RUNNING
    return is_known and lab.living(run) == 0 and [one.state for one in members] == ["pending"]


def command(run: str, *words: str, stdin: bool = False) -> OpenMemberStream:
    """Return the order to run a command in the first worker of a run."""
    options = MemberStreamOptions(kind=MemberStreamKind.EXEC, protocols=COMMANDS, command=words, stdin=stdin)
    return OpenMemberStream(stream="1", run=run, role="worker", index=0, options=options)


async def offers(lab: Lab, capability: Capability) -> bool:
    return capability in (await lab.runtime.capacity()).capabilities


async def frames_of(stream: MemberStream) -> dict[int, bytes]:
    """Return what a stream brings until its end, by channel."""
    found: dict[int, bytes] = {}
    async with asyncio.timeout(PATIENCE):
        while (one := await stream.receive()) is not None:
            found[one[0]] = found.get(one[0], b"") + one[1:]
        await stream.close()
    return found


def is_at(size: int) -> Callable[[RunStatus], bool]:
    """Return a condition of a status: the run has reached ``size``, and no member has still to leave or to start."""
    return lambda status: (
        status.sizes == {"worker": size}
        and placed(status) == size
        and all(one.state != "pending" for one in status.members)
    )


A, B, C = "alpha-0000001-r1", "beta-0000002-r1", "gamma-0000003-r1"


class RuntimeConformance:
    """Subclass this with a fixture ``lab``."""

    large_members_first: ClassVar[bool] = True
    """Whether a gang starts that fits only where its large members are placed before its small ones."""
    silence_seconds: ClassVar[float] = 2.0
    """How long after the last contact a run is stopped: longer than a member takes to be at work."""
    not_offered: ClassVar[frozenset[str]] = frozenset()
    """Capabilities that the runtime does not report; tests that need one are skipped."""

    @pytest.fixture(autouse=True)
    async def offers(self, request: pytest.FixtureRequest, lab: Lab) -> None:
        """Check that the runtime reports what a test needs, and skip the test where it is known not to."""
        for marker in request.node.iter_markers("needs"):
            (capability,) = marker.args
            offered = capability in (await lab.runtime.capacity()).capabilities
            assert offered is (capability not in self.not_offered)
            if not offered:
                pytest.skip(f"{capability} is not offered")

    # Capacity

    async def test_the_report_shows_each_node_group_whole_whatever_our_own_members_use(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(RUNS, count=3)))
        await until_state(lab, A, RunState.RUNNING)
        report = await lab.runtime.capacity()
        assert sum(group.count * group.free["cpu"] for group in report.groups) == 8000

    async def test_a_gang_gets_all_of_its_members_and_says_where_they_are(self, lab: Lab) -> None:
        small = "1" if self.large_members_first else "500m"
        await lab.runtime.start(
            start_run(lab, A, Part(RUNS, count=2, cpu="3"), Part(RUNS, count=2, name="ps", cpu=small))
        )
        status = await until_state(lab, A, RunState.RUNNING)
        await until_living(lab, A, 4)
        assert status.placement is not None
        groups = {group.name for group in (await lab.runtime.capacity()).groups}
        assert set(status.placement) <= groups
        by_member = Counter((one.group, one.role) for one in status.members)
        by_group = {(name, role): many for name, roles in status.placement.items() for role, many in roles.items()}
        assert by_member == by_group, "each member tells the group of its node"
        total: dict[str, int] = {}
        for roles in status.placement.values():
            for role, count in roles.items():
                total[role] = total.get(role, 0) + count
        assert total == {"worker": 2, "ps": 2}
        assert {(one.role, one.index, one.state) for one in status.members} == {
            ("worker", 0, "running"),
            ("worker", 1, "running"),
            ("ps", 0, "running"),
            ("ps", 1, "running"),
        }

    async def test_a_gang_that_does_not_fit_waits_as_a_whole(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(RUNS, count=2, cpu="2")))
        await until_state(lab, A, RunState.RUNNING)
        await lab.runtime.start(start_run(lab, B, Part(RUNS, count=5)))
        status = await until_state(lab, B, RunState.PENDING)
        assert re.search(r"\b5( of 5)? members", status.message)
        assert lab.living(B) == 0

    async def test_a_waiting_run_starts_when_room_comes(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(WAITS_FOR_GATE, count=2, cpu="4")))
        await until_state(lab, A, RunState.RUNNING)
        await lab.runtime.start(start_run(lab, B, Part(RUNS)))
        await until_state(lab, B, RunState.PENDING)
        lab.open_gate(A)
        await until_state(lab, A, RunState.SUCCEEDED)
        await until_state(lab, B, RunState.RUNNING)

    async def test_members_that_must_be_apart_wait_for_as_many_nodes(self, lab: Lab) -> None:
        assert "maxPerNode" in (await lab.runtime.capacity()).capabilities
        await lab.runtime.start(start_run(lab, A, Part(WAITS_FOR_GATE, cpu="4")))
        await until_state(lab, A, RunState.RUNNING)
        await lab.runtime.start(start_run(lab, B, Part(RUNS, count=2, of_role={"maxPerNode": 1})))
        status = await until_state(lab, B, RunState.PENDING)
        assert "at most 1 on a node" in status.message
        lab.open_gate(A)
        await until_state(lab, B, RunState.RUNNING)
        await until_living(lab, B, 2)

    @pytest.mark.needs("exclusiveNodes")
    async def test_exclusive_members_share_no_node_with_others(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(WAITS_FOR_GATE), topology={"exclusive": "node"}))
        await until_state(lab, A, RunState.RUNNING)
        await lab.runtime.start(start_run(lab, B, Part(RUNS, count=2), topology={"exclusive": "node"}))
        await until_state(lab, B, RunState.PENDING)
        other = "plain-0000000-r1"
        await lab.runtime.start(start_run(lab, other, Part(WAITS_FOR_GATE, count=5)))
        await until_state(lab, other, RunState.PENDING)
        assert (lab.living(B), lab.living(other)) == (0, 0), "four CPU are left, of one node"
        await lab.runtime.stop(stop_run(other))
        await until_over(lab, other)
        lab.open_gate(A)
        await until_state(lab, B, RunState.RUNNING)
        await until_living(lab, B, 2)

    async def test_the_cluster_never_runs_more_than_it_has(self, lab: Lab) -> None:
        runs = [f"crowd-{number:07d}-r1" for number in range(7)]
        for run in runs:
            await lab.runtime.start(start_run(lab, run, Part(WAITS_FOR_GATE, count=3)))
        for run in runs:
            lab.open_gate(run)
        deadline = time.monotonic() + PATIENCE
        while not all(status.state.is_terminal for status in lab.runtime.held().values()):
            assert sum(lab.living(run) for run in runs) <= 8
            assert time.monotonic() < deadline
            await lab.runtime.wait_changed(0.5)
        assert {status.state for status in lab.runtime.held().values()} == {RunState.SUCCEEDED}

    async def test_a_run_is_returned_with_the_reason_once_its_placement_timeout_is_over(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(RUNS, count=2, cpu="4")))
        await until_state(lab, A, RunState.RUNNING)
        await lab.runtime.start(start_run(lab, B, Part(RUNS), placement_timeout=0.2))
        status = await until_over(lab, B)
        assert status.state is RunState.RETURNED
        assert "CPU" in status.message
        assert status.end is not None
        assert status.end.lacks_room, "its job is tried again there"
        assert lab.living(B) == 0

    async def test_what_can_never_fit_is_returned_at_once(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(RUNS, cpu="5")))
        status = await until_over(lab, A)
        assert status.state is RunState.RETURNED
        assert "needs 5 CPU on one node, the largest node has 4" in status.message
        assert status.end is None or not status.end.lacks_room

    async def test_what_needs_a_dataset_that_is_not_here_is_returned(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(RUNS), placement={"datasets": ["imagenet"]}))
        status = await until_over(lab, A)
        assert status.state is RunState.RETURNED
        assert "imagenet" in status.message

    # Ends

    async def test_a_run_succeeds_when_all_its_members_do(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(SUCCEEDS, count=3)))
        status = await until_over(lab, A)
        assert status.state is RunState.SUCCEEDED
        assert {one.state for one in status.members} == {"succeeded"}

    async def test_a_run_has_the_results_of_its_first_member_also_after_a_restart_of_the_runtime(
        self, lab: Lab
    ) -> None:
        first, other = returns('{"accuracy": 0.5, "best": [3, null]}'), returns('{"accuracy": 1}')
        await lab.runtime.start(start_run(lab, A, Part(first, count=2), Part(other, name="other")))
        for _ in range(2):
            status = await until_over(lab, A)
            assert (status.state, status.results_error) == (RunState.SUCCEEDED, "")
            assert status.results == {"accuracy": 0.5, "best": [3, None]}
            await lab.restart()

    async def test_a_run_that_failed_has_results_too_and_they_are_not_the_message_on_its_end(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(returns('{"step": 70}', 3))))
        status = await until_over(lab, A)
        assert (status.state, status.results) == (RunState.FAILED, {"step": 70})
        assert status.end is not None
        assert status.end.exit_code == 3
        assert not any("step" in text for text in (status.message, status.end.message, status.members[0].message))

    async def test_what_is_no_json_object_is_told_and_does_not_fail_the_run(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(returns("accuracy 0.5"))))
        status = await until_over(lab, A)
        assert (status.state, status.results) == (RunState.SUCCEEDED, None)
        assert status.results_error.startswith("the results of worker-0 are not a JSON object: ")

    async def test_results_of_a_run_that_is_stopped_do_not_count(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(returns('{"a": 1}')), Part(RUNS, name="other")))
        await until_living(lab, A, 1)
        await lab.runtime.stop(stop_run(A))
        status = await until_over(lab, A)
        assert (status.state, status.results, status.results_error) == (RunState.CANCELLED, None, "")

    async def test_the_failure_of_one_member_ends_the_others_and_is_told(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(RUNS, count=2), Part(exits(7), name="bad")))
        status = await until_over(lab, A)
        assert status.state is RunState.FAILED
        assert status.end is not None
        assert (status.end.category, status.end.exit_code, status.end.member) == (FailureCategory.EXIT, 7, "bad-0")
        assert lab.living(A) == 0

    async def test_a_member_killed_by_a_signal_is_a_failure_with_that_signal(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(dies_by(9))))
        status = await until_over(lab, A)
        assert status.state is RunState.FAILED
        assert status.end is not None
        assert (status.end.category, status.end.signal, status.end.exit_code) == (FailureCategory.SIGNAL, 9, None)

    async def test_a_run_fails_when_its_time_limit_is_over(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(RUNS), timeLimit="300ms"))
        status = await until_over(lab, A)
        assert status.state is RunState.FAILED
        assert status.end is not None
        assert status.end.category is FailureCategory.DEADLINE
        assert lab.living(A) == 0

    # Restarts

    @pytest.mark.needs("memberRestart")
    async def test_a_failed_member_starts_again_alone(self, lab: Lab) -> None:
        again = {"action": "restartMember", "limit": 2}
        parts = (Part(fails_at_first(2), name="bad"), Part(WAITS_FOR_GATE, count=2))
        await lab.runtime.start(start_run(lab, A, *parts, memberFailure=again))
        await until(lab, A, lambda status: restarts(status, "bad") == [2])
        lab.open_gate(A)
        status = await until_over(lab, A)
        assert status.state is RunState.SUCCEEDED
        assert (restarts(status, "bad"), restarts(status, "worker")) == ([2], [0, 0])

    @pytest.mark.needs("memberRestart")
    async def test_a_member_that_fails_too_often_fails_the_run(self, lab: Lab) -> None:
        again = {"action": "restartMember", "limit": 1}
        parts = (Part(fails_at_first(9, code=5), name="bad"), Part(RUNS))
        await lab.runtime.start(start_run(lab, A, *parts, memberFailure=again))
        status = await until_over(lab, A)
        assert (status.state, restarts(status, "bad")) == (RunState.FAILED, [1])
        assert status.end is not None
        assert (status.end.exit_code, status.end.member) == (5, "bad-0")
        assert lab.living(A) == 0

    @pytest.mark.needs("memberRestart")
    async def test_a_role_may_say_for_itself_what_a_failure_means(self, lab: Lab) -> None:
        alone = {"memberFailure": {"action": "restartMember", "limit": 1}}
        await lab.runtime.start(
            start_run(lab, A, Part(fails_at_first(1), name="bad", of_role=alone), Part(WAITS_FOR_GATE))
        )
        await until(lab, A, lambda status: restarts(status, "bad") == [1])
        lab.open_gate(A)
        assert (await until_over(lab, A)).state is RunState.SUCCEEDED
        await lab.runtime.start(start_run(lab, B, Part(exits(4)), Part(RUNS, name="other", of_role=alone)))
        status = await until_over(lab, B)
        assert status.end is not None
        assert (status.state, status.end.exit_code, status.end.member) == (RunState.FAILED, 4, "worker-0")

    @pytest.mark.needs("memberRestart")
    async def test_a_member_waits_before_it_starts_again(self, lab: Lab) -> None:
        again = {"action": "restartMember", "limit": 2, "backOff": "300ms"}
        asked_at = lab.now()
        await lab.runtime.start(start_run(lab, A, Part(fails_at_first(2)), memberFailure=again))
        status = await until_over(lab, A)
        assert (status.state, restarts(status)) == (RunState.SUCCEEDED, [2])
        assert lab.now() - asked_at >= 0.6

    @pytest.mark.needs("memberRestart")
    @pytest.mark.needs("gangRestart")
    async def test_a_run_may_be_stopped_while_a_member_waits_to_start_again(self, lab: Lab) -> None:
        for run, action in ((A, "restartMember"), (B, "restartGang")):
            again = {"action": action, "limit": 2, "backOff": "1h"}
            await lab.runtime.start(start_run(lab, run, Part(fails_at_first(2)), memberFailure=again))
            await eventually(partial(has_failed_once, lab, run), "the member has failed")
            assert not lab.runtime.held()[run].state.is_terminal
            await lab.runtime.stop(stop_run(run, StopCause.PREEMPT, save=60.0))
            status = await until_over(lab, run)
            assert (status.state, [one.state for one in status.members]) == (RunState.PREEMPTED, ["stopped"])

    @pytest.mark.needs("gangRestart")
    async def test_all_members_start_again_together_after_a_failure(self, lab: Lab) -> None:
        again = {"action": "restartGang", "limit": 2}
        parts = (Part(fails_at_first(2), name="bad"), Part(WAITS_FOR_GATE, count=2))
        await lab.runtime.start(start_run(lab, A, *parts, memberFailure=again))
        await until(lab, A, lambda status: restarts(status, "worker") == [2, 2] and placed(status) == 3)
        status = await until_state(lab, A, RunState.RUNNING)
        assert restarts(status, "bad") == [2]
        lab.open_gate(A)
        status = await until_over(lab, A)
        assert status.state is RunState.SUCCEEDED
        assert {one.state for one in status.members} == {"succeeded"}

    @pytest.mark.needs("gangRestart")
    async def test_a_gang_that_fails_too_often_fails_the_run(self, lab: Lab) -> None:
        again = {"action": "restartGang", "limit": 1}
        parts = (Part(fails_at_first(9, code=5), name="bad"), Part(RUNS, count=2))
        await lab.runtime.start(start_run(lab, A, *parts, memberFailure=again))
        status = await until_over(lab, A)
        assert (status.state, restarts(status, "worker")) == (RunState.FAILED, [1, 1])
        assert status.end is not None
        assert (status.end.exit_code, status.end.member) == (5, "bad-0")
        assert lab.living(A) == 0

    @pytest.mark.needs("gangRestart")
    async def test_no_member_of_a_gang_starts_again_before_all_have_ended_and_waited(self, lab: Lab) -> None:
        again = {"action": "restartGang", "limit": 1, "backOff": "300ms"}
        parts = (Part(fails_at_first(1), name="bad"), Part(STUBBORN, count=2))
        asked_at = lab.now()
        await lab.runtime.start(start_run(lab, A, *parts, memberFailure=again, stopGrace="400ms"))
        await until(lab, A, lambda status: restarts(status, "worker") == [1, 1])
        assert lab.now() - asked_at >= 0.3
        await lab.runtime.stop(stop_run(A, grace=0))
        assert (await until_over(lab, A)).state is RunState.CANCELLED
        await until_living(lab, A, 0)

    @pytest.mark.needs("gangRestart")
    async def test_the_time_limit_counts_over_restarts(self, lab: Lab) -> None:
        again = {"action": "restartGang", "limit": 2, "backOff": "1h"}
        await lab.runtime.start(start_run(lab, A, Part(fails_at_first(1)), memberFailure=again, timeLimit="1s"))
        status = await until_over(lab, A)
        assert status.end is not None
        assert (status.state, status.end.category) == (RunState.FAILED, FailureCategory.DEADLINE)

    # Success of one role

    async def test_a_run_succeeds_with_the_role_that_decides_and_ends_the_others(self, lab: Lab) -> None:
        assert "successRole" in (await lab.runtime.capacity()).capabilities
        parts = (Part(SUCCEEDS, name="launcher"), Part(RUNS, count=2))
        await lab.runtime.start(start_run(lab, A, *parts, success={"role": "launcher"}))
        status = await until_over(lab, A)
        assert status.state is RunState.SUCCEEDED
        assert {(one.role, one.state) for one in status.members} == {("launcher", "succeeded"), ("worker", "stopped")}
        assert lab.living(A) == 0

    async def test_others_that_will_not_end_after_success_are_killed_once_the_grace_is_over(self, lab: Lab) -> None:
        parts = (Part(WAITS_FOR_GATE, name="launcher"), Part(STUBBORN))
        await lab.runtime.start(start_run(lab, A, *parts, success={"role": "launcher"}, stopGrace="400ms"))
        await eventually(lambda: lab.ready(A) == 2, "both members are at work")
        lab.open_gate(A)
        assert (await until_over(lab, A)).state is RunState.SUCCEEDED
        assert lab.living(A) == 0

    async def test_success_of_others_does_not_decide(self, lab: Lab) -> None:
        parts = (Part(SUCCEEDS, name="helper"), Part(WAITS_FOR_GATE, count=2))
        await lab.runtime.start(start_run(lab, A, *parts, success={"role": "worker"}))
        await eventually(lambda: lab.living(A) == 2, "the helper has ended")
        assert not lab.runtime.held()[A].state.is_terminal
        lab.open_gate(A)
        assert (await until_over(lab, A)).state is RunState.SUCCEEDED

    async def test_the_failure_of_others_fails_the_run_though_they_do_not_decide(self, lab: Lab) -> None:
        parts = (Part(RUNS, name="launcher"), Part(exits(6)))
        await lab.runtime.start(start_run(lab, A, *parts, success={"role": "launcher"}))
        status = await until_over(lab, A)
        assert status.end is not None
        assert (status.state, status.end.exit_code, status.end.member) == (RunState.FAILED, 6, "worker-0")

    # Stops

    @pytest.mark.parametrize("cause", list(StopCause))
    @pytest.mark.parametrize("behaviour", [RUNS, PEACEFUL], ids=["error", "success"])
    async def test_a_stopped_run_ends_as_its_cause_says_however_its_members_leave(
        self, lab: Lab, cause: StopCause, behaviour: Behaviour
    ) -> None:
        await lab.runtime.start(start_run(lab, A, Part(behaviour, count=2)))
        await eventually(lambda: lab.ready(A) == 2, "both members are at work")
        await lab.runtime.stop(stop_run(A, cause))
        status = await until_over(lab, A)
        assert status.state is cause.ends_as
        assert status.generation == 2
        assert lab.living(A) == 0

    async def test_members_that_ignore_sigterm_are_killed_when_the_grace_is_over(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(STUBBORN)))
        await eventually(lambda: lab.ready(A) == 1, "the member is at work")
        asked_at = lab.now()
        await lab.runtime.stop(stop_run(A, grace=0.4))
        await until_state(lab, A, RunState.STOPPING)
        assert (await until_over(lab, A)).state is RunState.CANCELLED
        assert lab.now() - asked_at >= 0.4
        assert lab.living(A) == 0

    async def test_a_shorter_grace_takes_effect_at_once(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(STUBBORN)))
        await eventually(lambda: lab.ready(A) == 1, "the member is at work")
        await lab.runtime.stop(stop_run(A, grace=3600))
        await until_state(lab, A, RunState.STOPPING)
        await lab.runtime.stop(stop_run(A, grace=0))
        assert (await until_over(lab, A)).state is RunState.CANCELLED

    async def test_a_stop_of_a_higher_generation_takes_the_place_of_a_lower_one(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(STUBBORN)))
        await eventually(lambda: lab.ready(A) == 1, "the member is at work")
        await lab.runtime.stop(stop_run(A, StopCause.SUSPEND, grace=3600))
        await until_state(lab, A, RunState.STOPPING)
        await lab.runtime.stop(stop_run(A, StopCause.CANCEL, grace=0, generation=3))
        await lab.runtime.stop(stop_run(A, StopCause.PREEMPT, grace=0, generation=2))
        status = await until_over(lab, A)
        assert (status.state, status.generation) == (RunState.CANCELLED, 3)

    async def test_members_have_time_to_save_their_state_before_they_are_told_to_end(self, lab: Lab) -> None:
        assert "checkpoint" in (await lab.runtime.capacity()).capabilities
        await lab.runtime.start(start_run(lab, A, Part(SAVES, count=2)))
        await eventually(lambda: lab.ready(A) == 2, "both members are at work")
        await until_state(lab, A, RunState.RUNNING)
        asked_at = lab.now()
        await lab.runtime.stop(stop_run(A, StopCause.PREEMPT, save=0.5))
        status = await until_state(lab, A, RunState.STOPPING)
        if lab.now() - asked_at < 0.4:
            assert lab.living(A) == 2
            assert {one.state for one in status.members} == {"running"}
        status = await until_over(lab, A)
        assert (status.state, status.generation) == (RunState.PREEMPTED, 2)
        assert 0.5 <= lab.now() - asked_at < 10, "told to end after it, and not killed"
        assert lab.living(A) == 0

    async def test_a_stop_that_waits_for_no_state_ends_the_wait(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(SAVES)))
        await eventually(lambda: lab.ready(A) == 1, "the member is at work")
        await lab.runtime.stop(stop_run(A, StopCause.SUSPEND, save=3600))
        await until_state(lab, A, RunState.STOPPING)
        await lab.runtime.stop(stop_run(A, StopCause.CANCEL, grace=3600, generation=3))
        status = await until_over(lab, A)
        assert (status.state, status.generation) == (RunState.CANCELLED, 3)

    async def test_a_shorter_wait_for_state_takes_effect_at_once(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(SAVES)))
        await eventually(lambda: lab.ready(A) == 1, "the member is at work")
        await lab.runtime.stop(stop_run(A, StopCause.SUSPEND, grace=3600, save=3600))
        await until_state(lab, A, RunState.STOPPING)
        await lab.runtime.stop(stop_run(A, StopCause.SUSPEND, grace=3600, save=0.1))
        assert (await until_over(lab, A)).state is RunState.SUSPENDED

    async def test_a_run_that_succeeded_before_the_stop_has_succeeded(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(SUCCEEDS)))
        before = await until_over(lab, A)
        await lab.runtime.stop(stop_run(A))
        assert lab.runtime.held()[A] == before

    async def test_a_run_stopped_while_it_waits_ends_at_once(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(RUNS, count=2, cpu="4")))
        await lab.runtime.start(start_run(lab, B, Part(RUNS)))
        await until_state(lab, B, RunState.PENDING)
        await lab.runtime.stop(stop_run(B, StopCause.PREEMPT))
        assert (await until_over(lab, B)).state is RunState.PREEMPTED
        assert lab.living(B) == 0

    async def test_a_stop_right_after_the_start_is_not_lost(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(RUNS, count=2)))
        await lab.runtime.stop(stop_run(A, grace=0))
        assert (await until_over(lab, A)).state is RunState.CANCELLED
        assert lab.living(A) == 0

    # Other sizes

    @pytest.mark.needs("resize")
    async def test_a_run_grows_where_there_is_room(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(RUNS, count=2)))
        before = await until_state(lab, A, RunState.RUNNING)
        assert before.sizes is None
        await lab.runtime.resize(resize_run(A, 5))
        status = await until(lab, A, is_at(5))
        assert (status.state, status.generation) == (RunState.RUNNING, 2)
        assert [(one.role, one.index, one.state, one.restarts) for one in status.members] == [
            ("worker", index, "running", 0) for index in range(5)
        ]
        await eventually(lambda: lab.living(A) == 5, "the new members have become their programs")
        await lab.runtime.start(start_run(lab, B, Part(RUNS, count=4)))
        await until_state(lab, B, RunState.PENDING)

    @pytest.mark.needs("resize")
    async def test_a_run_shrinks_from_its_highest_indexes_on(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(RUNS, count=6)))
        await eventually(lambda: lab.ready(A) == 6, "all members are at work")
        await lab.runtime.start(start_run(lab, B, Part(RUNS, count=5)))
        await until_state(lab, B, RunState.PENDING)
        await lab.runtime.resize(resize_run(A, 3))
        status = await until(lab, A, is_at(3))
        assert (status.state, status.generation) == (RunState.RUNNING, 2)
        assert [(one.index, one.state) for one in status.members] == [(index, "running") for index in range(3)]
        await until_state(lab, B, RunState.RUNNING)
        await until_living(lab, B, 5)
        assert lab.living(A) == 3

    @pytest.mark.needs("resize")
    async def test_a_run_that_shrank_may_grow_again(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(RUNS, count=4)))
        await until_state(lab, A, RunState.RUNNING)
        for generation, size in ((2, 1), (3, 3), (4, 2), (5, 8)):
            await lab.runtime.resize(resize_run(A, size, generation))
            status = await until(lab, A, is_at(size))
            assert sorted(one.index for one in status.members) == list(range(size))
            await until_living(lab, A, size)

    @pytest.mark.needs("resize")
    async def test_more_members_come_together_or_not_at_all(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(RUNS, count=2)))
        await lab.runtime.start(start_run(lab, B, Part(RUNS, count=5)))
        await until_state(lab, B, RunState.RUNNING)
        await lab.runtime.resize(resize_run(A, 4))
        status = await until(lab, A, lambda status: status.generation == 2 and status.state is RunState.RUNNING)
        assert (status.state, status.sizes, placed(status)) == (RunState.RUNNING, {"worker": 2}, 2)
        await until_living(lab, A, 2)

    @pytest.mark.needs("resize")
    async def test_a_member_that_will_not_leave_is_killed_and_keeps_its_place_until_then(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(STUBBORN, count=8), stopGrace="500ms"))
        await eventually(lambda: lab.ready(A) == 8, "all members are at work")
        asked_at = lab.now()
        await lab.runtime.resize(resize_run(A, 6, grace=0.5))
        await lab.runtime.start(start_run(lab, B, Part(RUNS, count=2)))
        await until_state(lab, B, RunState.RUNNING)
        assert lab.now() - asked_at >= 0.5
        await until_living(lab, B, 2)
        assert lab.living(A) == 6
        await until(lab, A, is_at(6))

    @pytest.mark.needs("resize")
    async def test_what_is_left_of_a_run_decides_its_end(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(WAITS_FOR_GATE, count=3)))
        await eventually(lambda: lab.ready(A) == 3, "all members are at work")
        await lab.runtime.resize(resize_run(A, 1))
        await until(lab, A, is_at(1))
        lab.open_gate(A)
        status = await until_over(lab, A)
        assert (status.state, len(status.members)) == (RunState.SUCCEEDED, 1)

    @pytest.mark.needs("resize")
    async def test_a_resize_said_again_or_too_late_does_nothing(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(RUNS, count=2)))
        await until_state(lab, A, RunState.RUNNING)
        await lab.runtime.resize(resize_run(A, 4, generation=3))
        await until(lab, A, is_at(4))
        await lab.runtime.resize(resize_run(A, 1, generation=2))
        await lab.runtime.resize(resize_run(A, 4, generation=3))
        await lab.runtime.resize(resize_run(B, 4))
        await until_living(lab, A, 4)
        await lab.runtime.stop(stop_run(A, generation=4))
        await lab.runtime.resize(resize_run(A, 8, generation=5))
        assert (await until_over(lab, A)).generation == 4

    @pytest.mark.needs("resize")
    async def test_a_run_that_waits_for_room_waits_for_its_other_size(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(RUNS, count=6)))
        await until_state(lab, A, RunState.RUNNING)
        await lab.runtime.start(start_run(lab, B, Part(RUNS, count=4)))
        await until_state(lab, B, RunState.PENDING)
        await lab.runtime.resize(resize_run(B, 2))
        status = await until_state(lab, B, RunState.RUNNING)
        assert (status.generation, placed(status)) == (2, 2)
        await until_living(lab, B, 2)

    @pytest.mark.needs("resize")
    async def test_a_resized_run_is_taken_over_as_it_is(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(RUNS, count=2)))
        await until_state(lab, A, RunState.RUNNING)
        await lab.runtime.resize(resize_run(A, 6))
        await until(lab, A, is_at(6))
        await lab.restart()
        status = lab.runtime.held()[A]
        assert (status.state, status.generation, status.sizes) == (RunState.RUNNING, 2, {"worker": 6})
        await until(lab, A, lambda _: lab.living(A) == 6)
        await lab.runtime.start(start_run(lab, B, Part(RUNS, count=3)))
        await until_state(lab, B, RunState.PENDING)
        await lab.runtime.resize(resize_run(A, 5, generation=3))
        await until_state(lab, B, RunState.RUNNING)
        await lab.runtime.stop(stop_run(A, generation=4))
        assert (await until_over(lab, A)).state is RunState.CANCELLED
        assert lab.living(A) == 0

    # Again and again

    async def test_a_run_started_twice_runs_once(self, lab: Lab) -> None:
        run = start_run(lab, A, Part(RUNS))
        await asyncio.gather(lab.runtime.start(run), lab.runtime.start(run))
        await until_state(lab, A, RunState.RUNNING)
        await lab.runtime.start(run)
        await lab.restart()
        await lab.runtime.start(run)
        await until_living(lab, A, 1)

    async def test_a_stop_said_again_does_not_prolong_the_grace(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(STUBBORN)))
        await eventually(lambda: lab.ready(A) == 1, "the member is at work")
        asked_at = lab.now()
        await lab.runtime.stop(stop_run(A, grace=0.5))
        while not lab.runtime.held()[A].state.is_terminal:
            await lab.runtime.stop(stop_run(A, grace=0.5))
            await lab.runtime.wait_changed(0.05)
            assert lab.now() - asked_at < PATIENCE

    async def test_stopping_and_forgetting_what_is_not_held_does_nothing(self, lab: Lab) -> None:
        await lab.runtime.stop(stop_run(A))
        await lab.runtime.forget(A)
        assert lab.runtime.held() == {}

    async def test_only_an_ended_run_can_be_forgotten(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(WAITS_FOR_GATE)))
        await until_state(lab, A, RunState.RUNNING)
        await lab.runtime.forget(A)
        assert A in lab.runtime.held()
        lab.open_gate(A)
        await until_over(lab, A)
        await lab.runtime.forget(A)
        await lab.runtime.forget(A)
        assert lab.runtime.held() == {}
        await lab.restart()
        assert lab.runtime.held() == {}

    # Restarts of the agent

    async def test_an_accepted_run_is_durable(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(RUNS)))
        await lab.restart()
        assert A in lab.runtime.held()
        await until_state(lab, A, RunState.RUNNING)
        await eventually(lambda: lab.living(A) == 1, "its one member lives")

    async def test_a_restart_finds_all_runs_as_they_are(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(SUCCEEDS)))
        await until_over(lab, A)
        await lab.runtime.start(start_run(lab, B, Part(WAITS_FOR_GATE, count=2, cpu="4")))
        await until_state(lab, B, RunState.RUNNING)
        await lab.runtime.start(start_run(lab, C, Part(RUNS)))
        await until_state(lab, C, RunState.PENDING)
        before, holder = lab.runtime.held(), lab.runtime.holder
        await lab.restart()
        after = lab.runtime.held()
        assert lab.runtime.holder == holder
        assert {run: status.state for run, status in after.items()} == {
            A: RunState.SUCCEEDED,
            B: RunState.RUNNING,
            C: RunState.PENDING,
        }
        assert all(after[run].seq >= before[run].seq for run in before)
        await until_living(lab, B, 2)
        assert lab.living(C) == 0, "what the running members use is still counted"
        lab.open_gate(B)
        await until_state(lab, B, RunState.SUCCEEDED)
        await until_state(lab, C, RunState.RUNNING)

    async def test_a_run_taken_over_can_be_stopped(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(RUNS)))
        await until_state(lab, A, RunState.RUNNING)
        await lab.restart()
        await lab.runtime.stop(stop_run(A, StopCause.SUSPEND))
        assert (await until_over(lab, A)).state is RunState.SUSPENDED

    async def test_the_sequence_rises_with_each_change_across_restarts(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(STUBBORN)))
        seen = [lab.runtime.held()[A]]

        async def note(state: RunState) -> None:
            seen.append(await until_state(lab, A, state))

        await note(RunState.RUNNING)
        await lab.restart()
        await note(RunState.RUNNING)
        await eventually(lambda: lab.ready(A) == 1, "the member is at work")
        await lab.runtime.stop(stop_run(A, grace=0.2))
        await note(RunState.STOPPING)
        await note(RunState.CANCELLED)
        await lab.restart()
        await note(RunState.CANCELLED)
        for earlier, later in pairwise(seen):
            assert later.seq > earlier.seq or later == earlier

    # Disconnection

    @pytest.mark.parametrize("behaviour", [RUNS, STUBBORN], ids=["meek", "stubborn"])
    async def test_without_news_every_member_is_dead_before_the_disconnect_limit(
        self, lab: Lab, behaviour: Behaviour
    ) -> None:
        asked_at, limit = lab.now(), 2 * self.silence_seconds
        await lab.runtime.renew(asked_at)
        await lab.runtime.start(start_run(lab, A, Part(behaviour, count=2), disconnect=limit, stopGrace="10m"))
        await eventually(lambda: lab.ready(A) == 2, "both members are at work")
        await eventually(lambda: lab.living(A) == 0, "the members are dead", within=limit + 0.5)
        assert lab.now() < asked_at + limit
        assert (await until_over(lab, A)).state is RunState.LOST

    async def test_news_put_the_disconnect_limit_off(self, lab: Lab) -> None:
        first, limit = lab.now(), 3.0
        await lab.runtime.renew(first)
        await lab.runtime.start(start_run(lab, A, Part(RUNS), disconnect=limit))
        while lab.now() < first + limit + 0.5 or lab.runtime.held()[A].state in (RunState.ACCEPTED, RunState.PENDING):
            await lab.runtime.renew(lab.now())
            await lab.runtime.wait_changed(0.1)
        assert lab.runtime.held()[A].state is RunState.RUNNING
        assert (await until_over(lab, A)).state is RunState.LOST

    async def test_a_run_that_waits_for_room_past_the_disconnect_limit_is_lost(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(RUNS, count=2, cpu="4")))
        await lab.runtime.renew(lab.now())
        await lab.runtime.start(start_run(lab, B, Part(RUNS), disconnect=1.0))
        assert (await until_over(lab, B)).state is RunState.LOST

    async def test_silence_cuts_the_time_to_save_state_short(self, lab: Lab) -> None:
        await lab.runtime.renew(lab.now())
        asked_at = lab.now()
        await lab.runtime.start(start_run(lab, A, Part(SAVES), disconnect=self.silence_seconds, stopGrace="500ms"))
        await eventually(lambda: lab.ready(A) == 1, "the member is at work")
        await lab.runtime.stop(stop_run(A, StopCause.PREEMPT, grace=3600, save=3600))
        assert (await until_over(lab, A)).state is RunState.PREEMPTED
        assert lab.living(A) == 0
        assert lab.now() - asked_at < self.silence_seconds + PATIENCE

    async def test_a_run_that_may_wait_is_never_stopped_for_silence(self, lab: Lab) -> None:
        asked_at = lab.now()
        await lab.runtime.renew(asked_at)
        await lab.runtime.start(start_run(lab, A, Part(RUNS)))
        await until_state(lab, A, RunState.RUNNING)
        await lab.runtime.start(start_run(lab, B, Part(RUNS), disconnect=1.0))
        await until_state(lab, B, RunState.LOST)
        assert lab.runtime.held()[A].state is RunState.RUNNING
        await until_living(lab, A, 1)

    # Output

    async def test_output_is_read_by_offset_and_from_its_end(self, lab: Lab) -> None:
        text = "one\ntwo\nthree\n"
        await lab.runtime.start(start_run(lab, A, Part(prints(text))))
        await until_over(lab, A)
        whole = await lab.runtime.read_log(A, "worker", 0, 0, 1000)
        assert (whole.offset, whole.data.decode(), whole.end) == (0, text, True)
        part = await lab.runtime.read_log(A, "worker", 0, 4, 3)
        assert (part.offset, part.data, part.end) == (4, b"two", False)
        tail = await lab.runtime.read_log(A, "worker", 0, -6, 1000)
        assert (tail.offset, tail.data, tail.end) == (8, b"three\n", True)
        longer = await lab.runtime.read_log(A, "worker", 0, -1000, 1000)
        assert (longer.offset, longer.data.decode()) == (0, text)
        nothing = await lab.runtime.read_log(A, "worker", 0, len(text), 1000)
        assert (nothing.offset, nothing.data, nothing.end) == (len(text), b"", True)

    async def test_output_of_a_running_member_has_no_end_yet(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(RUNS)))
        await until_state(lab, A, RunState.RUNNING)
        assert not (await lab.runtime.read_log(A, "worker", 0, 0, 1000)).end

    async def test_output_of_an_unknown_run_or_member_is_a_key_error(self, lab: Lab) -> None:
        with pytest.raises(KeyError):
            await lab.runtime.read_log(A, "worker", 0, 0, 1000)
        await lab.runtime.start(start_run(lab, A, Part(RUNS)))
        with pytest.raises(KeyError):
            await lab.runtime.read_log(A, "worker", 1, 0, 1000)
        with pytest.raises(KeyError):
            await lab.runtime.read_log(A, "boss", 0, 0, 1000)

    async def test_the_length_of_ended_output_is_known_after_it_was_read(self, lab: Lab) -> None:
        text = "one\ntwo\nthree\n"
        await lab.runtime.start(start_run(lab, A, Part(prints(text))))
        await until_over(lab, A)
        await lab.runtime.read_log(A, "worker", 0, -1000, 1000)
        assert lab.runtime.output_end(A, "worker", 0) == len(text)
        assert lab.runtime.output_lives(A, "worker", 0) == ()
        assert lab.runtime.output_end(B, "worker", 0) is None

    # Use

    async def test_use_is_that_of_running_members(self, lab: Lab) -> None:
        assert await lab.runtime.member_use() == UseReading()
        await lab.runtime.start(start_run(lab, A, Part(RUNS, count=2)))
        await until_state(lab, A, RunState.RUNNING)
        reading = await lab.runtime.member_use()
        assert {(one.run, one.role) for one in reading.members} <= {(A, "worker")}
        assert len({one.index for one in reading.members}) == len(reading.members)
        assert all((one.memory or 0) >= 0 and (one.cpu or 0.0) >= 0 for one in reading.members)

    # Streams

    async def test_a_command_is_run_in_a_running_member(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(RUNS)))
        await until_state(lab, A, RunState.RUNNING)
        if not await offers(lab, Capability.EXEC):
            with pytest.raises(StreamRefusedError, match="no processes"):
                await lab.runtime.open_stream(command(A, "echo", "hello"))
            return
        stream = await lab.runtime.open_stream(command(A, "echo", "hello"))
        frames = await frames_of(stream)
        assert frames[Channel.OUTPUT] == b"hello\n"
        assert exit_code_of(frames[Channel.STATUS]) == (0, "")
        failed = await frames_of(await lab.runtime.open_stream(command(A, "/bin/sh", "-c", "exit 3")))
        assert exit_code_of(failed[Channel.STATUS])[0] == 3

    async def test_a_command_gets_its_input_to_the_end(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(RUNS)))
        await until_state(lab, A, RunState.RUNNING)
        if not await offers(lab, Capability.EXEC):
            return
        stream = await lab.runtime.open_stream(command(A, "cat", stdin=True))
        for part in (b"one\n", b"two\n"):
            await stream.send(frame(Channel.INPUT, part))
        await stream.send(frame(Channel.CLOSE, bytes((Channel.INPUT,))))
        frames = await frames_of(stream)
        assert frames[Channel.OUTPUT] == b"one\ntwo\n"
        assert exit_code_of(frames[Channel.STATUS])[0] == 0

    async def test_no_stream_is_opened_to_a_member_that_does_not_run(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(SUCCEEDS)))
        await until_over(lab, A)
        for run in (A, B):
            with pytest.raises(StreamRefusedError):
                await lab.runtime.open_stream(command(run, "echo", "hello"))

    async def test_the_last_lines_of_output_are_found(self, lab: Lab) -> None:
        text = "one\ntwo\nthree\n"
        await lab.runtime.start(start_run(lab, A, Part(prints(text))))
        await until_over(lab, A)
        found = [await offset_of_lines(lab.runtime, A, "worker", 0, lines) for lines in (0, 1, 2, 3, 9)]
        assert found == [14, 8, 4, 0, 0]

    # Waiting for news

    async def test_waiting_for_a_change_ends_without_one_when_the_time_is_up(self, lab: Lab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(RUNS)))
        await until_state(lab, A, RunState.RUNNING)
        while await lab.runtime.wait_changed(0.1):
            pass
        assert await lab.runtime.wait_changed(0.05) is False
        await lab.runtime.stop(stop_run(A))
        assert await lab.runtime.wait_changed(PATIENCE) is True
