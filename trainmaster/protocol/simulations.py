"""Simulations that an installation runs in the background, as people ask for them and as they are told of them."""

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, Field, StringConstraints, model_validator

from trainmaster.protocol.base import Lenient, QueuePath, Strict, Timestamp
from trainmaster.protocol.resource_kinds import Kind
from trainmaster.protocol.workload import Workload

MOST_VALUES = 20
"""Simulations that are compared, at most."""
MOST_DOCUMENTS = 1000
MOST_TEXT = 8 * 1024 * 1024
"""Characters of a workload."""


class SimulationState(StrEnum):
    """``queued -> running -> succeeded | failed | cancelled``; back to ``queued`` if its worker ends while it runs."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self not in (SimulationState.QUEUED, SimulationState.RUNNING)


class HistoryPart(Strict):
    """What the installation has really done: jobs that were submitted in this time and have ended."""

    since: AwareDatetime
    until: AwareDatetime | None = None
    """Now unless told otherwise."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.until is not None and self.until <= self.since:
            raise ValueError("until has to be later than since")
        return self


class WorkloadSpec(Strict):
    """The jobs: exactly one of the three. Texts are whole files."""

    history: HistoryPart | None = None
    swf: Annotated[str, StringConstraints(max_length=MOST_TEXT)] | None = None
    """A log in the Standard Workload Format."""
    csv: Annotated[str, StringConstraints(max_length=MOST_TEXT)] | None = None
    """A table, as ``trainmaster simulate`` reads it."""
    name: Annotated[str, StringConstraints(max_length=100)] = ""
    """What the report calls it."""
    queue: QueuePath | None = None
    """For jobs that name none; the first that takes jobs unless told otherwise."""

    @model_validator(mode="after")
    def _one_of_three(self) -> Self:
        if sum(one is not None for one in (self.history, self.swf, self.csv)) != 1:
            raise ValueError("give exactly one of history, swf and csv")
        return self


class SweepSpec(Strict):
    """One simulation for each value of a field of burst policies."""

    field: Annotated[str, StringConstraints(pattern=r"^burst\.[A-Za-z]+(\.[A-Za-z]+)*$", max_length=100)]
    """Such as ``burst.after``."""
    values: Annotated[
        tuple[Annotated[str, StringConstraints(min_length=1, max_length=100)], ...],
        Field(min_length=1, max_length=MOST_VALUES),
    ]
    """``none`` is as if the policies were paused."""


class CaseSpec(Strict):
    """One simulation of those that are compared: what is declared in it on top of all else."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    documents: Annotated[tuple[dict[str, Any], ...], Field(max_length=MOST_DOCUMENTS)] = ()


class SimulationSpec(Strict):
    """What is simulated. Without a fleet, on the installation's own; ``documents`` stand in place of what it has of their names."""

    title: Annotated[str, StringConstraints(max_length=100)] = ""
    workload: WorkloadSpec
    fleet: dict[str, Any] | None = None
    """As for ``trainmaster agent run --simulated``."""
    documents: Annotated[tuple[dict[str, Any], ...], Field(max_length=MOST_DOCUMENTS)] = ()
    """Queues, classes, clusters, price books, datasets and burst policies, as for ``trainmaster apply``."""
    alone: bool = False
    """Whether only the documents count, and nothing of what the installation has declared."""
    sweep: SweepSpec | None = None
    cases: Annotated[tuple[CaseSpec, ...], Field(max_length=MOST_VALUES)] = ()
    """In place of a sweep."""
    limits: Literal["asked", "exact", "none"] = "asked"
    """Time limits: as asked for in the workload, the true run times, or none."""
    faster: Annotated[float, Field(ge=0.001, le=1000, allow_inf_nan=False)] = 1.0
    """Divides the times between submissions."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """In place of the fleet's."""

    @model_validator(mode="after")
    def _compares_one_thing(self) -> Self:
        if self.cases and self.sweep is not None:
            raise ValueError("give cases or sweep, not both")
        if len({case.name for case in self.cases}) < len(self.cases):
            raise ValueError("two cases have the same name")
        return self


class Installation(Lenient):
    """An installation as the API shows it to an admin: its clusters, and by kind all that was declared."""

    clusters: tuple[dict[str, Any], ...] = ()
    declared: dict[Kind, tuple[dict[str, Any], ...]] = {}


class SimulationOrder(Lenient):
    """All that a simulation needs, for a process that knows no store."""

    spec: SimulationSpec
    installation: Installation
    history: tuple[Workload, ...] = ()
    currency: str = "EUR"


class SimulationProgress(Lenient):
    """How far a simulation is: the case at work, how many cases there are, and how many of its jobs have ended."""

    case: int = 0
    cases: int = 0
    jobs_ended: int = 0
    jobs: int = 0


class SimulationView(Lenient):
    """A simulation as it is told of; ``result`` only where one is asked for, once it has succeeded."""

    id: int
    title: str = ""
    state: SimulationState
    created_at: Timestamp
    created_by: str = ""
    started_at: Timestamp | None = None
    ended_at: Timestamp | None = None
    progress: SimulationProgress = SimulationProgress()
    message: str = ""
    """Why it failed."""
    spec: dict[str, Any] | None = None
    """What was asked for, without the texts of workloads."""
    result: dict[str, Any] | None = None
    """``workload``, ``leftOut`` and ``cases``: for each its name and the figures that ``trainmaster simulate -o json`` prints."""
