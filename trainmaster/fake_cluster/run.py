"""`FakeRun`: one simulated run, as small as possible: there are tens of thousands."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Literal

from trainmaster.fake_cluster.plan import FakeSpec
from trainmaster.fake_cluster.pools import SimulatedNode
from trainmaster.protocol.agent import StartRun, StopRun
from trainmaster.protocol.placement import MemberPlacement
from trainmaster.protocol.states import FailureCategory, RunState

Place = tuple[SimulatedNode, int, int]
"""A node, the position of a role in the plan, and the number of its members there."""

MemberState = Literal["pending", "running", "succeeded", "failed", "stopped"]


@dataclass(frozen=True, slots=True)
class FakeEnd:
    """The end of a run, or the one to come once its members are gone."""

    state: RunState
    message: str = ""
    category: FailureCategory | None = None
    exit_code: int | None = None
    signal: int | None = None
    role: int | None = None
    """Position of the role whose member decided it."""
    index: int = 0
    lacks_room: bool = False
    """Whether it was returned because it found no free capacity."""
    by_stop: bool = False
    """Whether a stop order caused it; a later order may then change it."""


SUCCEEDED = FakeEnd(RunState.SUCCEEDED)


@dataclass(frozen=True, slots=True)
class FakeMember:
    """A member as it is when it is read."""

    role: str
    index: int
    state: MemberState
    node: str
    group: str
    """Group of the node in the capacity report; empty once the run has ended."""
    exit_code: int | None = None
    signal: int | None = None
    restarts: int = 0


class FakeRun:
    """A run that a simulated cluster holds. Changed by its cluster only."""

    __slots__ = (
        "accepted_at",
        "attempt",
        "disconnect",
        "ended_at",
        "generation",
        "gone_at",
        "id",
        "leaving",
        "message",
        "outcome",
        "pause",
        "paused",
        "pins",
        "placed",
        "places",
        "plan",
        "regroups",
        "released",
        "resized",
        "restarts",
        "resting",
        "return_at",
        "role_ends",
        "role_gone",
        "seq",
        "started_at",
        "state",
        "stop",
        "stopping_at",
        "token",
        "verdict",
    )

    def __init__(self, order: StartRun, plan: FakeSpec | None, now: float) -> None:
        self.id = order.run
        self.plan = plan
        self.generation = order.generation
        self.attempt = order.attempt
        self.disconnect = order.disconnect_seconds
        self.pins = order.pins
        self.accepted_at = now
        self.return_at = now + order.placement_timeout_seconds
        self.state = RunState.ACCEPTED
        self.message = ""
        self.seq = 1
        self.stop: StopRun | None = None
        self.verdict: FakeEnd | None = None
        """The decided end, which takes effect once its members are gone."""
        self.outcome: FakeEnd | None = None
        """Its end without outside events; None while it runs: its members restart."""
        self.places: list[Place] | None = None
        """Current places."""
        self.placed: list[Place] | None = None
        """Last places."""
        self.started_at = inf
        self.ended_at = inf
        self.stopping_at = inf
        self.gone_at = inf
        self.role_ends: tuple[float, ...] = ()
        """Time when each role's members end by themselves; empty until they have started."""
        self.role_gone: tuple[float, ...] = ()
        """Time when each role's members end after they were ordered to stop."""
        self.restarts: dict[int, int] | None = None
        """Number of restarts of single members, by role."""
        self.resting: set[int] = set()
        """Roles whose first member has failed and waits for its restart."""
        self.regroups = 0
        """Number of restarts of all members together."""
        self.pause = 0.0
        """Seconds between the end of the last member and the restart of all, if they restart."""
        self.paused = False
        """Whether such a restart is in progress: members were ordered to end, or wait."""
        self.token = 0
        """Timers with an older token are void."""
        self.leaving: list[tuple[float, dict[int, int]]] | None = None
        """Members that were ordered to leave: time when they have ended, and their number by role."""
        self.resized = False
        """Whether it was ever resized."""
        self.released = False
        """Whether its members succeed as soon as they run."""

    @property
    def sizes(self) -> dict[str, int] | None:
        """Members by role, once a resize was ordered."""
        if not self.resized or self.plan is None:
            return None
        return {role.name: role.count for role in self.plan.roles}

    @property
    def placement(self) -> MemberPlacement | None:
        """Members by node group of the capacity report, and by role."""
        if self.placed is None or self.plan is None:
            return None
        groups: MemberPlacement = {}
        for node, role, count in self.placed:
            name = self.plan.roles[role].name
            of_group = groups.setdefault(_group_of(node), {})
            of_group[name] = of_group.get(name, 0) + count
        return groups

    def members(self) -> Iterator[FakeMember]:
        """Yield the members that have or had a place. Those that ended by themselves show it once the run is over."""
        if self.plan is None:
            return
        verdict = self.verdict if self.verdict is not None else SUCCEEDED
        counts = [0] * len(self.plan.roles)
        for node, position, count in self.placed or ():
            role, name = self.plan.roles[position], node.name
            group = "" if self.state.is_terminal else _group_of(node)
            state = self._state(position)
            restarts = 0 if self.restarts is None else self.restarts.get(position, 0)
            for index in range(counts[position], counts[position] + count):
                again = self.regroups + (restarts if index == 0 else 0)
                if self.state.is_terminal and verdict.role == position and verdict.index == index:
                    yield FakeMember(role.name, index, "failed", name, group, verdict.exit_code, verdict.signal, again)
                else:
                    own = state
                    if index == 0 and position in self.resting:
                        own = "stopped" if self.state.is_terminal else "pending"
                    yield FakeMember(role.name, index, own, name, group, 0 if own == "succeeded" else None, None, again)
            counts[position] += count

    def _state(self, position: int) -> MemberState:
        if self.paused or not self.role_ends:
            return "stopped" if self.state.is_terminal else "pending"
        if self.state.is_terminal:
            return "succeeded" if self.role_ends[position] <= min(self.stopping_at, self.ended_at) else "stopped"
        return "running"

    def living(self, now: float) -> int:
        """Return the number of members alive at ``now``."""
        if self.plan is None or self.places is None or now < self.started_at:
            return 0
        ends = self.role_gone or self.role_ends
        leaving = sum(sum(counts.values()) for at, counts in self.leaving or () if at > now)
        alive = [
            (place, role) for place, (role, end) in enumerate(zip(self.plan.roles, ends, strict=True)) if end > now
        ]
        return leaving + sum(role.count - (place in self.resting) for place, role in alive)


def _group_of(node: SimulatedNode) -> str:
    return node.pool.name if node.lot is None else node.lot.name
