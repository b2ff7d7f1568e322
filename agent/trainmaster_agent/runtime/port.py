"""The runtime port: what the agent's loop asks of whatever runs the members.

A runtime owns the durable records of the runs it holds, so that a new agent process finds all of them again. It has no idea
of the dispatcher: it is told what to start, to stop and to forget, and until when it may act without news.
All methods may be called again with the same arguments without harm.
"""

from dataclasses import dataclass, field
from typing import Protocol

from trainmaster.protocol.agent import CapacityReport, MemberReport, ResizeRun, RunEnd, StartRun, StopRun
from trainmaster.protocol.states import RunState


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A run as its runtime holds it.

    ``seq`` rises with every change and survives restarts. A terminal state is given only when every member is gone.
    """

    run: str
    generation: int
    seq: int
    state: RunState
    message: str = ""
    end: RunEnd | None = None
    placement: dict[str, dict[str, int]] | None = None
    members: tuple[MemberReport, ...] = field(default=())
    sizes: dict[str, int] | None = None
    """Members by role that it is kept at, once it was asked to resize it."""


@dataclass(frozen=True, slots=True)
class LogSlice:
    """Bytes of a member's output. ``end`` says that the member is over and nothing follows."""

    offset: int
    data: bytes
    end: bool


class RuntimeRefusedError(Exception):
    """The runtime cannot hold this run, for example because its spec needs what it does not offer."""


class RuntimeAwayError(Exception):
    """What keeps the durable records does not answer now; the same call may work later."""


class Runtime(Protocol):
    """What the agent asks of a runtime."""

    @property
    def holder(self) -> str:
        """The identity of the durable records: the same after a restart that kept them."""
        ...

    @property
    def place(self) -> str:
        """Where members live, so that ``verify_absent`` finds any member there, whichever agent started it. Empty: it cannot."""
        ...

    async def open(self) -> None:
        """Take over the records and whatever of them still runs. Called once, before everything else."""
        ...

    async def close(self) -> None:
        """Let go without touching any member; they go on."""
        ...

    async def capacity(self) -> CapacityReport:
        """What the cluster has now."""
        ...

    def held(self) -> dict[str, RunStatus]:
        """Every run held, by id, ended ones that are not forgotten yet included."""
        ...

    async def start(self, run: StartRun) -> None:
        """Record the run durably as accepted; then start its members, all together or none.

        Returns once the record is durable. A run already held is left as it is. What cannot be placed within the run's placement
        time-out ends as ``returned`` with the reason in its message; so does what this runtime cannot run at all. Raises
        RuntimeAwayError when it cannot be recorded now.
        """
        ...

    async def stop(self, stop: StopRun) -> None:
        """Stop the members: SIGTERM, after the grace SIGKILL. The run ends as its cause says once all are gone.

        A higher generation takes the place of a lower one; a shorter grace takes effect at once. Unknown runs are ignored.
        """
        ...

    async def verify_absent(self, stop: StopRun, installation: str) -> bool:
        """Return whether no member of a run that is not held is alive in ``place``; what is found is stopped as ``stop`` says.

        Asked again after False. ``installation`` tells members from those of another dispatcher whose run has the same id; where
        that cannot be told, nothing is stopped and the answer is False.
        """
        ...

    async def resize(self, resize: ResizeRun) -> None:
        """Bring a run that goes on to other sizes, without touching the members that stay.

        Those with the highest indexes leave: SIGTERM, after the grace SIGKILL. New ones start if all of them find room now; else the
        run keeps its size and says so. A generation that is not newer than the run's, and a run that is stopping or not held,
        are left alone.
        """
        ...

    async def forget(self, run: str) -> None:
        """Drop the record of a run that has ended. A run that has not ended is kept, and this does nothing."""
        ...

    async def renew(self, asked_at: float) -> None:
        """The dispatcher has answered a sync that was sent at ``asked_at`` (seconds of CLOCK_BOOTTIME).

        A run with ``disconnect_seconds`` must have no living member at ``asked_at + disconnect_seconds``, grace included, even if
        this process dies; it then ends as ``lost``.
        """
        ...

    async def wait_changed(self, timeout: float) -> bool:
        """Wait until something in ``held`` has changed since the last call; False when ``timeout`` seconds passed first."""
        ...

    async def read_log(self, run: str, role: str, index: int, offset: int, limit: int) -> LogSlice:
        """At most ``limit`` bytes of a member's output from ``offset`` on; a negative ``offset`` counts from the end.

        Raises KeyError for a run or member not held.
        """
        ...
