"""A run as the agent holds it in memory, and what may be said of it before a keeper has it."""

from dataclasses import dataclass, replace
from enum import Enum, auto

from pydantic import ValidationError

from trainmaster.cluster_model.packing import PackingShortfall
from trainmaster.protocol.agent import ResizeRun, RunEnd, StartRun, StopRun
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.states import FailureCategory, RunState
from trainmaster_agent.runtime.local.layout import RUN_NAME, RunPlan
from trainmaster_agent.runtime.local.records import LocalRecord
from trainmaster_agent.runtime.local.room import LocalCapacity
from trainmaster_agent.runtime.port import RunStatus, RuntimeRefusedError


class Phase(Enum):
    """Who has the run."""

    WAITING = auto()
    """The agent: nobody was asked to start it."""
    ASKED = auto()
    """The zygote was asked for a keeper; there may be one by now."""
    KEPT = auto()
    """A keeper has it, or had it and died."""
    OVER = auto()


@dataclass(slots=True)
class Held:
    """One run of this agent."""

    record: LocalRecord
    status: RunStatus
    spec: JobSpec | None = None
    phase: Phase = Phase.WAITING
    stop: StopRun | None = None
    plan: RunPlan | None = None
    """What its keeper was told, while it has room."""
    resize: ResizeRun | None = None
    """Other sizes that it was asked to have and that could not be written yet."""
    asked_at: float = 0.0
    """When the zygote was last asked for a keeper."""
    read_at: int = 0
    """The change time of the status file when it was last read."""

    @property
    def run(self) -> str:
        return self.record.start.run

    def lost_at(self, lease: float | None) -> float | None:
        """The moment from which no member may live, unless there is news."""
        limit = self.record.start.disconnect_seconds
        if limit is None:
            return None
        return limit + (self.record.accepted_at if lease is None else lease)

    def has_member(self, role: str, index: int) -> bool:
        """Whether it has, or had when it ended, such a member beyond those that it began with."""
        return any((one.role, one.index) == (role, index) for one in self.status.members)

    def returned_at(self) -> float:
        """The moment at which a run that still waits for room goes back."""
        return self.record.accepted_at + self.record.start.placement_timeout_seconds

    def next(self, state: RunState, message: str, end: RunEnd | None = None) -> RunStatus:
        """The status that follows, under the generation of the stop if one was asked for."""
        generation = self.status.generation if self.stop is None else max(self.stop.generation, self.status.generation)
        return replace(
            self.status, seq=self.status.seq + 1, generation=generation, state=state, message=message, end=end
        )


def accepted(record: LocalRecord) -> RunStatus:
    """The first status of every run: its record is durable, and nothing more."""
    return RunStatus(run=record.start.run, generation=record.start.generation, seq=1, state=RunState.ACCEPTED)


def check_name(run: StartRun) -> None:
    """Raises RuntimeRefusedError for an id that is no name of a directory."""
    if not RUN_NAME.fullmatch(run.run):
        raise RuntimeRefusedError(f"{run.run!r} is not a run id; a run id looks like bert-7k2p9xq-r1")


@dataclass(frozen=True, slots=True)
class StartRefusal:
    """Why a run never starts here, and how it ends therefore."""

    state: RunState
    message: str
    category: FailureCategory | None = None

    @property
    def end(self) -> RunEnd:
        return RunEnd(category=self.category, message=self.message)


def admit(run: StartRun, room: LocalCapacity) -> JobSpec | StartRefusal:
    """The job's specification if this runtime can run it.

    What another cluster might run is returned; what none can run as it is written has failed.
    """
    try:
        spec = JobSpec.model_validate(run.spec)
    except ValidationError as error:
        return StartRefusal(
            RunState.RETURNED, f"this agent does not understand the specification: {_first_mistake(error)}"
        )
    for role in spec.roles:
        size = run.sizes.get(role.name, 0)
        if size and role.template is None:
            return StartRefusal(
                RunState.RETURNED, f"role {role.name} has a podTemplate, which the local runtime cannot run"
            )
        if size and role.template and not role.template.command:
            message = f"role {role.name} has no command: the local runtime runs commands, never images"
            return StartRefusal(RunState.FAILED, message, FailureCategory.CONFIG)
    if not any(run.sizes.get(role.name, 0) for role in spec.roles):
        return StartRefusal(RunState.FAILED, "the run has no members", FailureCategory.CONFIG)
    lack = room.lacks(spec)
    if lack is not None:
        return StartRefusal(RunState.RETURNED, lack)
    fit = room.find(spec, run.sizes, empty=True)
    if isinstance(fit, PackingShortfall):
        return StartRefusal(RunState.RETURNED, f"it can never fit here: {fit.sentence}")
    return spec


def _first_mistake(error: ValidationError) -> str:
    mistake = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in mistake['loc'])}: {mistake['msg']}"
