"""`RunEntry`: a run in the agent's memory, and its statuses before a supervisor has it."""

from dataclasses import dataclass, replace
from enum import Enum, auto

from pydantic import ValidationError

from trainmaster.cluster_model.packing import PackingShortfall
from trainmaster.protocol.agent import ResizeRun, RunEnd, StartRun, StopRun
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.states import FailureCategory, RunState
from trainmaster_agent.runtime.local.layout import RUN_NAME, RunPlan
from trainmaster_agent.runtime.local.local_capacity import LocalCapacity
from trainmaster_agent.runtime.local.records import LocalRecord
from trainmaster_agent.runtime.port import RunStatus, RuntimeRefusedError


class Phase(Enum):
    """Process that is responsible for the run."""

    WAITING = auto()
    """The agent: no start was requested."""
    REQUESTED = auto()
    """A supervisor was requested from the fork server; one may exist by now."""
    KEPT = auto()
    """A supervisor has it, or had it and died."""
    OVER = auto()


@dataclass(slots=True)
class RunEntry:
    """One run of this agent."""

    record: LocalRecord
    status: RunStatus
    spec: JobSpec | None = None
    phase: Phase = Phase.WAITING
    stop: StopRun | None = None
    plan: RunPlan | None = None
    """The supervisor's orders, while the run holds capacity."""
    resize: ResizeRun | None = None
    """Resize order that could not be written yet."""
    asked_at: float = 0.0
    """Time of the last request for a supervisor."""
    read_at: int = 0
    """Change time of the status file when it was last read."""

    @property
    def run(self) -> str:
        return self.record.start.run

    def lost_at(self, lease: float | None) -> float | None:
        """Return the time from which no member may live, unless the dispatcher answers before."""
        limit = self.record.start.disconnect_seconds
        if limit is None:
            return None
        return limit + (self.record.accepted_at if lease is None else lease)

    def has_member(self, role: str, index: int) -> bool:
        """Return whether the run has, or had at its end, such a member beyond its initial ones."""
        return any((one.role, one.index) == (role, index) for one in self.status.members)

    def returned_at(self) -> float:
        """Return the time at which a run that still waits for capacity is returned."""
        return self.record.accepted_at + self.record.start.placement_timeout_seconds

    def next(self, state: RunState, message: str, end: RunEnd | None = None) -> RunStatus:
        """Return the following status, under the generation of the stop if one was ordered."""
        generation = self.status.generation if self.stop is None else max(self.stop.generation, self.status.generation)
        return replace(
            self.status, seq=self.status.seq + 1, generation=generation, state=state, message=message, end=end
        )


def accepted(record: LocalRecord) -> RunStatus:
    """Return the first status of every run: its record is durable, and nothing else has happened."""
    return RunStatus(run=record.start.run, generation=record.start.generation, seq=1, state=RunState.ACCEPTED)


def check_name(run: StartRun) -> None:
    """Raise RuntimeRefusedError for an id that cannot be the name of a directory."""
    if not RUN_NAME.fullmatch(run.run):
        raise RuntimeRefusedError(f"{run.run!r} is not a run id; a run id looks like bert-7k2p9xq-r1")


@dataclass(frozen=True, slots=True)
class StartRefusal:
    """Reason why a run can never start here, and how it ends therefore."""

    state: RunState
    message: str
    category: FailureCategory | None = None

    @property
    def end(self) -> RunEnd:
        return RunEnd(category=self.category, message=self.message)


def admit(run: StartRun, capacity: LocalCapacity) -> JobSpec | StartRefusal:
    """Return the job's specification if this runtime can run it, else the refusal.

    A run that another cluster might accept is returned; one that no cluster can run as it is written has failed.
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
    lack = capacity.lacks(spec)
    if lack is not None:
        return StartRefusal(RunState.RETURNED, lack)
    fit = capacity.find(spec, run.sizes, empty=True)
    if isinstance(fit, PackingShortfall):
        return StartRefusal(RunState.RETURNED, f"it can never fit here: {fit.sentence}")
    return spec


def _first_mistake(error: ValidationError) -> str:
    mistake = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in mistake['loc'])}: {mistake['msg']}"
