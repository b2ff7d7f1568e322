"""Simulations that an installation runs in the background: requests and results."""

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from trainmaster.protocol.base import (
    Lenient,
    QueuePath,
    Strict,
    Timestamp,
    WrittenTime,
    bounded,
    example,
    worded_pattern,
)
from trainmaster.protocol.resource_kinds import Kind
from trainmaster.protocol.tenants import QueueSpec
from trainmaster.protocol.workload import Workload

MOST_VALUES = 20
"""The most simulations to compare."""
MOST_DOCUMENTS = 1000
MOST_EDITED_QUEUES = 100
"""The most queues of one what-if."""
MOST_TEXT = 8 * 1024 * 1024
"""The most characters of a workload."""


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
    """The installation's own history: jobs that were submitted in this time and have ended."""

    since: WrittenTime
    """Begin of the time."""
    until: WrittenTime | None = None
    """End of the time; by default now."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.until is not None and self.until <= self.since:
            raise ValueError("until has to be later than since")
        return self


class WorkloadSpec(Strict):
    """The workload: exactly one of the three. Texts are whole files."""

    history: HistoryPart | None = None
    """Jobs of the installation's own history."""
    swf: Annotated[str, StringConstraints(max_length=MOST_TEXT)] | None = None
    """A log in the Standard Workload Format."""
    csv: Annotated[str, StringConstraints(max_length=MOST_TEXT)] | None = None
    """A table, as ``trainmaster simulate`` reads it."""
    name: Annotated[str, StringConstraints(max_length=100)] = ""
    """Name of the workload in the report."""
    queue: QueuePath | None = None
    """Queue of jobs that name none; by default the first that takes jobs."""

    @model_validator(mode="after")
    def _one_of_three(self) -> Self:
        if sum(one is not None for one in (self.history, self.swf, self.csv)) != 1:
            raise ValueError("give exactly one of history, swf and csv")
        return self


class SweepSpec(Strict):
    """One simulation for each value of a field of burst policies."""

    field: Annotated[
        str,
        StringConstraints(
            max_length=100,
            pattern=worded_pattern(
                r"^burst\.[A-Za-z]+(\.[A-Za-z]+)*$", "the path of a field of burst policies, such as burst.after"
            ),
        ),
    ]
    """Path of the field, such as ``burst.after``."""
    values: Annotated[
        tuple[Annotated[str, StringConstraints(min_length=1, max_length=100)], ...],
        Field(min_length=1),
        bounded(MOST_VALUES),
    ]
    """Values of the field; ``none`` pauses the policies."""


class CaseSpec(Strict):
    """One of the compared simulations: its declarations override all others."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    """Name of the case in the report."""
    documents: Annotated[tuple[dict[str, Any], ...], bounded(MOST_DOCUMENTS)] = ()
    """Declared objects of the case."""


class SimulationSpec(Strict):
    """A simulation. Without a fleet, of the installation's own clusters; ``documents`` replace its objects of the same names."""

    model_config = example(
        title="a second cluster",
        workload={"history": {"since": "2026-11-01T00:00:00Z"}},
        sweep={"field": "burst.after", "values": ["5m", "30m", "none"]},
    )

    title: Annotated[str, StringConstraints(max_length=100)] = ""
    """Title for people."""
    workload: WorkloadSpec
    """Jobs that are submitted in the simulation."""
    fleet: dict[str, Any] | None = None
    """A fleet, as for ``trainmaster agent run --simulated``."""
    documents: Annotated[tuple[dict[str, Any], ...], bounded(MOST_DOCUMENTS)] = ()
    """Declared objects, jobs excluded, as for ``trainmaster apply``."""
    alone: bool = False
    """True to use only the documents, and none of the installation's declared objects."""
    sweep: SweepSpec | None = None
    """Values of a field to compare."""
    cases: Annotated[tuple[CaseSpec, ...], bounded(MOST_VALUES)] = ()
    """Cases to compare, instead of a sweep."""
    limits: Literal["asked", "exact", "none"] = "asked"
    """Time limits of jobs: as requested in the workload, the true run times, or none."""
    faster: Annotated[float, Field(ge=0.001, le=1000, allow_inf_nan=False)] = 1.0
    """Factor by which the times between submissions are divided."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """Seed, instead of the fleet's."""
    predictions: bool = True
    """False to plan with time limits alone, as with ``TRAINMASTER_PREDICT_RUN_TIMES=false``."""

    @model_validator(mode="after")
    def _compares_one_thing(self) -> Self:
        if self.cases and self.sweep is not None:
            raise ValueError("give cases or sweep, not both")
        if len({case.name for case in self.cases}) < len(self.cases):
            raise ValueError("two cases have the same name")
        return self


MOST_WHAT_IF_JOBS = 100_000
"""The most jobs of the history that a what-if of quotas replays."""


class QuotaWhatIfSpec(Strict):
    """Question what other quotas would have done with the jobs of a time, by default of the last seven days."""

    model_config = example(
        queues=[{"path": "research/vision", "resources": {"nvidia.com/gpu": {"guaranteed": "24"}}}],
        since="2026-11-17T00:00:00Z",
    )

    queues: Annotated[tuple[QueueSpec, ...], Field(min_length=1), bounded(MOST_EDITED_QUEUES)]
    """The edited queues as a whole, as for ``PUT``: the queue of the address, queues below it, or both."""
    since: WrittenTime | None = None
    """Begin of the time; by default seven days before its end."""
    until: WrittenTime | None = None
    """End of the time; by default now."""
    title: Annotated[str, StringConstraints(max_length=100)] = ""
    """Title for people."""

    @model_validator(mode="after")
    def _names_each_once(self) -> Self:
        if len({one.path for one in self.queues}) < len(self.queues):
            raise ValueError("two of the queues have the same path")
        if self.since is not None and self.until is not None and self.until <= self.since:
            raise ValueError("until has to be later than since")
        return self


class Installation(Lenient):
    """An installation as the API shows it to an admin: its clusters, and all declared objects by kind."""

    clusters: tuple[dict[str, Any], ...] = ()
    declared: dict[Kind, tuple[dict[str, Any], ...]] = {}


class SimulationOrder(Lenient):
    """Complete input of a simulation, for a process without access to the store."""

    spec: SimulationSpec
    installation: Installation
    history: tuple[Workload, ...] = ()
    currency: str = "EUR"


class SimulationProgress(Lenient):
    """Progress of a simulation: the current case, the number of cases, and the number of its ended jobs."""

    case: int = 0
    """Number of the current case, from 1; 0 before the first."""
    cases: int = 0
    """Number of cases."""
    jobs_ended: int = 0
    """Number of jobs of the current case that have ended."""
    jobs: int = 0
    """Number of jobs of the current case."""


class SimulationView(Lenient):
    """A simulation in answers; ``result`` only if a single one is requested, once it has succeeded."""

    model_config = example(
        id=12,
        title="a second cluster",
        state="running",
        createdAt="2026-11-24T08:00:00.000Z",
        createdBy="admin",
        startedAt="2026-11-24T08:00:03.000Z",
        progress={"case": 1, "cases": 3, "jobsEnded": 800, "jobs": 2000},
    )

    id: int
    """Number of the simulation."""
    title: str = ""
    """Title for people."""
    state: SimulationState
    """State of the simulation."""
    created_at: Timestamp
    """Time of the request."""
    created_by: str = ""
    """Name of the API key that requested it."""
    started_at: Timestamp | None = None
    """Time at which a worker began it."""
    ended_at: Timestamp | None = None
    """Time of its end."""
    progress: SimulationProgress = SimulationProgress()
    """Progress of its cases."""
    message: str = ""
    """Reason of its failure."""
    spec: dict[str, Any] | None = None
    """The request, without the texts of workloads."""
    result: dict[str, Any] | None = None
    """``workload``, ``leftOut`` and ``cases``: for each its name and the figures that ``trainmaster simulate -o json`` prints."""
