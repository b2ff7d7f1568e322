"""The runtime port: what the agent's loop needs from a runtime of members.

A runtime owns the durable records of the runs it holds, so that a new agent process finds all of them again. It knows nothing
of the dispatcher: it receives orders to start, stop and forget runs, and the time when the dispatcher last answered.
All methods are idempotent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from trainmaster.protocol.agent import CapacityReport, MemberReport, ResizeRun, RunEnd, StartRun, StopRun
from trainmaster.protocol.member_streams import OpenMemberStream
from trainmaster.protocol.member_use import NEAR_LIMIT
from trainmaster.protocol.placement import MemberPlacement
from trainmaster.protocol.states import RunState


@dataclass(frozen=True, slots=True)
class RunStatus:
    """Status of a run in its runtime.

    ``seq`` rises with every change and survives restarts. The state is terminal only when every member is gone.
    """

    run: str
    generation: int
    seq: int
    state: RunState
    message: str = ""
    end: RunEnd | None = None
    placement: MemberPlacement | None = None
    members: tuple[MemberReport, ...] = field(default=())
    sizes: dict[str, int] | None = None
    """Current members by role, once a resize was ordered."""
    object_status: Mapping[str, Any] | None = None
    """Status of the object as which the run exists on its cluster, of a job with a ``workload``."""
    results: Mapping[str, Any] | None = None
    """Results that the member of rank 0 has left, of a run that has succeeded or failed."""
    results_error: str = ""
    """Why what it has left cannot be read, as a sentence."""


@dataclass(frozen=True, slots=True)
class LogSlice:
    """Bytes of a member's output. ``end``: the member is over and nothing follows."""

    offset: int
    data: bytes
    end: bool


@dataclass(frozen=True, slots=True)
class MemberUse:
    """Present use of a member. None: unknown, which is never 0.

    ``cpu``: cores, on average since the reading before; ``memory`` and ``gpu_memory``: bytes; ``gpu``: percent of the time in which
    its GPUs were at work, on average over them. ``restarts`` and ``oom_kills``: in its run, ``memory_limit``: bytes.
    """

    run: str
    role: str
    index: int
    cpu: float | None = None
    memory: int | None = None
    gpu: float | None = None
    gpu_memory: int | None = None
    restarts: int | None = None
    oom_kills: int | None = None
    memory_limit: int | None = None

    @property
    def near_limit(self) -> bool | None:
        """Return whether the member nearly runs out of memory; None where its memory or its limit is unknown."""
        if self.memory is None or not self.memory_limit:
            return None
        return self.memory > NEAR_LIMIT * self.memory_limit


@dataclass(frozen=True, slots=True)
class UseReading:
    """Present use of members, as far as it is known. ``missing``: why some of it is not, for people."""

    members: tuple[MemberUse, ...] = ()
    missing: str = ""


class RuntimeRefusedError(Exception):
    """The runtime cannot hold this run, for example because its spec needs an unsupported feature."""


class RuntimeAwayError(Exception):
    """The store of the durable records is unreachable; the same call may work later."""


class StreamRefusedError(Exception):
    """A stream to a member cannot be opened. ``status``: the HTTP status of the refusal."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class StreamCutError(Exception):
    """A stream to a member was cut: nobody knows what it would have sent."""


class MemberStream(Protocol):
    """An open stream to a member: frames both ways, as its ``protocol`` says; see ``protocol.member_streams``."""

    @property
    def protocol(self) -> str: ...

    async def receive(self) -> bytes | None:
        """Return the next frame of the member; None after the last one. Raises StreamCutError."""
        ...

    async def send(self, frame: bytes) -> None:
        """Pass a frame on to the member; wait while the member cannot take it. Frames for a member that is gone are dropped."""
        ...

    async def close(self) -> None:
        """Let go: a command that still runs is ended, or left alone where the cluster offers no way to end it."""
        ...


@runtime_checkable
class LastingStream(MemberStream, Protocol):
    """An open stream to a command that goes on for some time when its connection is lost."""

    async def leave(self) -> None:
        """Let go, so that the command can be connected to again."""
        ...


@runtime_checkable
class OutputStream(MemberStream, Protocol):
    """An open stream of output whose place in all output of its process is known."""

    offset: int
    """Offset in bytes of the first output."""


class Runtime(Protocol):
    """Interface of a runtime."""

    @property
    def holder(self) -> str:
        """Identity of the durable records: the same after a restart that kept them."""
        ...

    @property
    def place(self) -> str:
        """Identity of where members live: ``verify_absent`` finds any member there, whichever agent started it. Empty: it cannot."""
        ...

    async def open(self) -> None:
        """Take over the records and all runs that still run. Called once, before everything else."""
        ...

    async def close(self) -> None:
        """Let go without touching any member; members go on."""
        ...

    async def capacity(self) -> CapacityReport:
        """Return the cluster's current capacity."""
        ...

    def held(self) -> dict[str, RunStatus]:
        """Return every run held, by id, including ended ones that are not forgotten yet."""
        ...

    async def start(self, run: StartRun) -> None:
        """Record the run durably as accepted; then start its members, all together or none.

        Returns once the record is durable. A run already held is left as it is. A run that cannot be placed within its placement
        time-out ends as ``returned`` with the reason in its message; so does one that this runtime cannot run at all. Raises
        RuntimeAwayError when it cannot be recorded now.
        """
        ...

    async def stop(self, stop: StopRun) -> None:
        """Stop the members: SIGTERM, after the grace SIGKILL. The run ends as its cause says once all are gone.

        A higher generation replaces a lower one; a shorter grace takes effect at once. Unknown runs are ignored.
        """
        ...

    async def verify_absent(self, stop: StopRun, installation: str) -> bool:
        """Return whether no member of a run that is not held is alive in ``place``; members found are stopped as ``stop`` says.

        Called again after False. ``installation`` distinguishes members from those of another dispatcher's run with the same id; where
        that is unknown, nothing is stopped and the answer is False.
        """
        ...

    async def resize(self, resize: ResizeRun) -> None:
        """Change the sizes of a running run, without touching the members that stay.

        Those with the highest indexes leave: SIGTERM, after the grace SIGKILL. New ones start if all of them fit now; else the
        run keeps its size and reports that. A generation that is not newer than the run's, and a run that is stopping or not held,
        are left alone.
        """
        ...

    async def forget(self, run: str) -> None:
        """Drop the record of an ended run. Does nothing for a run that has not ended."""
        ...

    async def renew(self, asked_at: float) -> None:
        """Note that the dispatcher has answered a sync that was sent at ``asked_at`` (seconds of CLOCK_BOOTTIME).

        A run with ``disconnect_seconds`` must have no living member at ``asked_at + disconnect_seconds``, grace included, even if
        this process dies; it then ends as ``lost``.
        """
        ...

    async def wait_changed(self, timeout: float) -> bool:
        """Wait until ``held`` has changed since the last call; return False when ``timeout`` seconds passed first."""
        ...

    async def read_log(self, run: str, role: str, index: int, offset: int, limit: int) -> LogSlice:
        """Return at most ``limit`` bytes of a member's output from ``offset`` on; a negative ``offset`` counts from the end.

        Raises KeyError for a run or member not held.
        """
        ...

    @property
    def stores_output(self) -> bool:
        """True if members' output is sent to the dispatcher to be stored; that of simulated members can be generated again."""
        ...

    def output_end(self, run: str, role: str, index: int) -> int | None:
        """Return the number of bytes that a member has printed; None where that is known only by reading them, or nothing is known."""
        ...

    def output_lives(self, run: str, role: str, index: int) -> tuple[int, ...]:
        """Return the offsets at which the output of a member's restarts begins, in order."""
        ...

    async def member_use(self) -> UseReading:
        """Return what the members of running runs use now.

        Called again and again by one caller, in intervals of some seconds; takes no longer than one. What cannot be read is left out.
        """
        ...

    async def open_stream(self, order: OpenMemberStream) -> MemberStream:
        """Run a command in a member, attach to its first process, or connect to its ports. Raises StreamRefusedError."""
        ...
