"""The way from a request for a simulation to the scenario, and from its outcome to the result: the same for files and
for calls. Pure."""

import io
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from trainmaster.fake_cluster.fleet import Fleet
from trainmaster.fake_cluster.generate import tenants_of
from trainmaster.protocol.bursting import BurstPolicySpec
from trainmaster.protocol.documents import Document, in_place_of, read_declared
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.prices import PriceBookSpec
from trainmaster.protocol.simulations import (
    Installation,
    SimulationOrder,
    SimulationProgress,
    SimulationSpec,
    WorkloadSpec,
)
from trainmaster.protocol.tenants import ClusterSpec, DatasetSpec, PriorityClassSpec, QueueSpec
from trainmaster.protocol.validation_errors import mistakes_of, worded
from trainmaster.protocol.workload import Workload
from trainmaster_dispatcher.whatif.engine import Declared, Simulation
from trainmaster_dispatcher.whatif.figures import figures_of, summary_of
from trainmaster_dispatcher.whatif.installation import documents_of, fleet_of
from trainmaster_dispatcher.whatif.report import Case, page
from trainmaster_dispatcher.whatif.sweeping import with_burst
from trainmaster_dispatcher.whatif.trace import Limits, Trace, read_history, read_swf, read_table
from trainmaster_dispatcher.whatif.values import Waits, to_data, waits_to_data

MOST_NODES = 100_000
"""The largest number of nodes of a fleet that is simulated in the background."""
ReportProgress = Callable[[SimulationProgress], None]


class Scenario(NamedTuple):
    """A workload, a fleet, and the declarations of each of the simulations that are compared, by name."""

    trace: Trace
    fleet: Fleet
    cases: Sequence[tuple[str, Declared]]
    predicts: bool = True
    """Whether plans use predicted run times."""


class StudyResult(NamedTuple):
    """The result: the data of ``simulate -o json``, and the report as a page."""

    result: dict[str, Any]
    report: str


def declared(documents: Sequence[Document], fleet: Fleet) -> Declared:
    """Return what documents declare; without any, a queue that may use all of the fleet. Raises ProblemError."""
    if documents:
        specs = [item.spec for item in read_declared(documents)]
    else:
        specs = [QueueSpec.model_validate(one) for one in tenants_of(fleet) if one["kind"] == "Queue"]
    return Declared(
        queues=[spec for spec in specs if isinstance(spec, QueueSpec)],
        classes=[spec for spec in specs if isinstance(spec, PriorityClassSpec)],
        clusters=[spec for spec in specs if isinstance(spec, ClusterSpec)],
        books=[spec for spec in specs if isinstance(spec, PriceBookSpec)],
        policies=[spec for spec in specs if isinstance(spec, BurstPolicySpec)],
        datasets=[spec for spec in specs if isinstance(spec, DatasetSpec)],
    )


def first_leaf(found: Declared) -> str:
    """Return the queue for jobs that name none: of the queues that take jobs, the first by path."""
    parents = {spec.parent for spec in found.queues}
    leaves = sorted(spec.path for spec in found.queues if spec.path not in parents)
    return leaves[0] if leaves else "default"


def read_fleet(value: dict[str, Any]) -> Fleet:
    """Parse a fleet as a person wrote it. Raises ProblemError with each mistake."""
    try:
        found = Fleet.model_validate(value)
    except ValidationError as error:
        mistakes = mistakes_of(error, "fleet")
        raise ProblemError(Code.INVALID_SPEC, worded(mistakes[0]), mistakes=mistakes) from error
    groups = [group for one in found.clusters for group in one.groups]
    nodes = sum(max(one.count, one.provisioning.most if one.provisioning else 0) for one in groups)
    if nodes > MOST_NODES:
        raise ProblemError(
            Code.INVALID_SPEC, f"fleet: {nodes:,} nodes; a simulation in the background has {MOST_NODES:,} at most"
        )
    return found


def plan_of(spec: SimulationSpec, there: Installation) -> tuple[Fleet, list[tuple[str, Declared]]]:
    """Return the fleet, and the declarations of each of the simulations that are compared. Raises ProblemError for mistakes."""
    fleet = fleet_of(there.clusters) if spec.fleet is None else read_fleet(spec.fleet)
    if spec.seed is not None:
        fleet = fleet.model_copy(update={"seed": spec.seed})
    requested = _documents(spec.documents, "documents")
    cases = [
        (case.name, _documents(case.documents, f"cases[{number}].documents")) for number, case in enumerate(spec.cases)
    ]
    for documents in (requested, *(on_top for _, on_top in cases)):
        read_declared(documents)  # report mistakes before their consequences
    documents = in_place_of(() if spec.alone else documents_of(there.declared), requested)
    if cases:
        return fleet, [(name, declared(in_place_of(documents, on_top), fleet)) for name, on_top in cases]
    if spec.sweep is None:
        return fleet, [("", declared(documents, fleet))]
    field = spec.sweep.field
    swept = [(value, with_burst(documents, field, value)) for value in spec.sweep.values]
    return fleet, [(f"{field}={value}", declared(one, fleet)) for value, one in swept]


def scenario(order: SimulationOrder) -> Scenario:
    """Return the scenario of an order. Raises ProblemError for mistakes in the order, or for conflicts with the installation."""
    spec = order.spec
    fleet, cases = plan_of(spec, order.installation)
    queue = spec.workload.queue or first_leaf(cases[0][1])
    trace = read_workload(spec.workload, queue, spec.limits, order.history)
    return Scenario(trace.faster(spec.faster), fleet, cases, spec.predictions)


def _documents(values: Sequence[dict[str, Any]], place: str) -> list[Document]:
    return [Document(value, f"{place}[{number}]") for number, value in enumerate(values)]


def read_workload(spec: WorkloadSpec, queue: str, limits: Limits, history: Iterable[Workload]) -> Trace:
    """Return the jobs. Raises ProblemError, also if there are none."""
    if spec.swf is not None:
        return read_text("swf", spec.name or "swf", spec.swf, queue, limits)
    if spec.csv is not None:
        return read_text("csv", spec.name or "csv", spec.csv, queue, limits)
    return _not_empty(read_history(spec.name or "history", history, limits))


def read_text(form: str, name: str, text: str, queue: str, limits: Limits) -> Trace:
    """Return the jobs of a file in the format ``swf`` or ``csv``. Raises ProblemError, also if there are none."""
    read = read_swf if form == "swf" else read_table
    return _not_empty(read(name, io.StringIO(text.removeprefix("\ufeff")), queue, limits))


def _not_empty(trace: Trace) -> Trace:
    if not trace.jobs:
        raise ProblemError(Code.INVALID_SPEC, f"{trace.name} has no job that ran and ended")
    return trace


def really(trace: Trace) -> Waits | None:
    """Return how long the jobs really waited, if that is known of all."""
    found = [(job.waited, job.run) for job in trace.jobs if job.waited is not None]
    return summary_of(found) if found and len(found) == len(trace.jobs) else None


def head_of(trace: Trace) -> dict[str, Any]:
    """Return the part of the result that describes the workload."""
    was = really(trace)
    return {
        "workload": trace.name,
        "leftOut": trace.left_out,
        **({"whatWas": waits_to_data(was)} if was is not None else {}),
    }


def simulate(
    what: Scenario, title: str, currency: str, report_progress: ReportProgress = lambda _: None
) -> StudyResult:
    """Run all cases, one after the other. Raises ProblemError for declarations that contradict each other."""
    cases = []
    for number, (name, one) in enumerate(what.cases, start=1):

        def tell(ended: int, jobs: int, case: int = number) -> None:
            report_progress(SimulationProgress(case=case, cases=len(what.cases), jobs_ended=ended, jobs=jobs))

        tell(0, len(what.trace.jobs))
        engine = Simulation(what.fleet, one, predicts=what.predicts)
        cases.append(Case(name, figures_of(engine.run(what.trace, tell))))
    result = {**head_of(what.trace), "cases": [{"name": case.name, **to_data(case.figures)} for case in cases]}
    return StudyResult(result, page(title or f"Simulation of {what.trace.name}", what.trace.name, cases, currency))
