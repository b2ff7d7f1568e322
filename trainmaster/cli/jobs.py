"""``jobs``, ``job`` and ``why``: showing jobs."""

from collections.abc import Sequence
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, assert_never

import typer

from trainmaster.cli import completion, config, filters, queue_position, top
from trainmaster.cli.errors import UsageError
from trainmaster.cli.job_details import (
    cost_words,
    deadline_of,
    element_words,
    members_of,
    print_element_jobs,
    print_element_results,
    print_elements,
    print_last_output,
    print_results,
    print_roles,
)
from trainmaster.cli.output import (
    Format,
    OutputOption,
    age,
    data_of,
    lasted,
    note,
    now,
    print_data,
    print_pairs,
    print_sentence,
    print_table,
    styled,
    took,
)
from trainmaster.cli.refresh import WatchOption, repeated
from trainmaster.protocol.states import ConditionState, JobState

if TYPE_CHECKING:
    from trainmaster.client.http import Client
    from trainmaster.client.values import JobFilter
    from trainmaster.protocol.answers import JobDependencies, JobReason
    from trainmaster.protocol.tenants import JobView, RunView

_FEW_MEMBERS = 20

JobId = Annotated[str, typer.Argument(metavar="ID", show_default=False, autocompletion=completion.jobs)]


class SortKey(StrEnum):
    """Order of a list of jobs."""

    SUBMITTED = "submitted"
    STARTED = "started"
    ENDED = "ended"
    RAN = "ran"
    PRIORITY = "priority"
    NAME = "name"
    QUEUE = "queue"
    STATE = "state"

    @property
    def is_descending(self) -> bool:
        """Return whether the latest, longest or highest come first."""
        return self not in (SortKey.NAME, SortKey.QUEUE, SortKey.STATE)


def register(app: typer.Typer) -> None:
    for command in (jobs, job, elements, why):
        app.command()(command)


def jobs(
    ctx: typer.Context,
    search: filters.SearchOption = None,
    queue: filters.QueueOption = None,
    state: filters.StateOption = None,
    name: filters.NameOption = None,
    label: filters.LabelOption = None,
    group: filters.GroupOption = None,
    priority_class: filters.PriorityClassOption = None,
    cluster: filters.ClusterOption = None,
    mine: filters.MineOption = False,
    by: filters.ByOption = None,
    since: filters.SinceOption = None,
    until: filters.UntilOption = None,
    sort: Annotated[
        SortKey,
        typer.Option(help="Order of the jobs that are shown; times and priorities from the latest or highest on."),
    ] = SortKey.SUBMITTED,
    limit: Annotated[int, typer.Option(min=1, help="The most jobs to show, the newest first.")] = 50,
    everything: Annotated[bool, typer.Option("-A", "--all", help="Show all jobs that match.")] = False,
    watch: WatchOption = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """List jobs, the newest first."""
    given = filters.Given(queue, state, name, label, cluster, mine, by, since, until, group, priority_class, search)
    with config.connect(ctx) as client:
        wanted = given.to_filter(client)
        most = None if everything else limit
        repeated(lambda: _list_jobs(client, wanted, most, sort, output), watch=watch)


def _list_jobs(client: "Client", wanted: "JobFilter", most: int | None, sort: SortKey, output: Format) -> None:
    """Print jobs that match; at most ``most``, None: all."""
    found = client.jobs(wanted, page_size=1000 if most is None else min(most + 1, 1000))
    shown = list(found if most is None else islice(found, most + 1))
    more = most is not None and len(shown) > most
    shown = sorted_jobs(shown if most is None else shown[:most], sort)
    if output.is_data:
        print_data([data_of(item) for item in shown], output)
    else:
        _print_jobs(shown, wide=output is Format.WIDE)
    if more:
        this = "this is the newest" if most == 1 else f"these are the newest {most}"
        note(f"there are more jobs; {this}; -A shows all, --limit N shows more")


def sorted_jobs(found: "Sequence[JobView]", sort: SortKey) -> "list[JobView]":
    """Return the jobs in an order. Those that lack the value, such as an end, come last."""
    moment = now()

    def value(item: "JobView") -> Any:
        match sort:
            case SortKey.SUBMITTED:
                return item.submitted_at
            case SortKey.STARTED:
                return item.started_at
            case SortKey.ENDED:
                return item.ended_at
            case SortKey.RAN:
                return item.ran_until(moment)
            case SortKey.PRIORITY:
                return item.priority
            case SortKey.NAME:
                return item.name
            case SortKey.QUEUE:
                return item.queue
            case SortKey.STATE:
                return item.shown_state
            case _:
                assert_never(sort)

    having = [item for item in found if value(item) is not None]
    lacking = [item for item in found if value(item) is None]
    return [*sorted(having, key=value, reverse=sort.is_descending), *lacking]


def _print_jobs(found: "Sequence[JobView]", *, wide: bool) -> None:
    if not found:
        note("no job matches")
        return
    moment = now()
    columns = ["ID", "QUEUE", "STATE", "CLUSTER", "SUBMITTED", "RAN"]
    if wide:
        columns += ["CLASS", "PRIORITY", "RUN", "BY", "GROUP", "LABELS", "MESSAGE"]
    rows = []
    for item in found:
        ran = lasted(item.ran_until(moment))
        row = [item.id, item.queue, _state(item), item.cluster or "-", age(item.submitted_at, moment), ran]
        if wide:
            labels = ", ".join(f"{key}={value}" for key, value in item.labels.items())
            row += [item.priority_class, str(item.priority), str(item.attempt or "-"), item.submitted_by]
            row += [item.group or "-", labels or "-", item.message or "-"]
        rows.append(row)
    print_table(columns, rows)


_MOST_AFTER = 5
_CONDITION = {
    ConditionState.WAITING: "{}, waits for {}",
    ConditionState.MET: "{}",
    ConditionState.NEVER: "{}, never {}",
}


def _state(item: "JobView") -> str:
    return f"{item.shown_state} ({item.hold_cause})" if item.hold_cause else item.shown_state


def job(
    ctx: typer.Context,
    job: JobId,
    spec: Annotated[
        bool, typer.Option("--spec", help="Print the specification alone, with its parameters, as submit takes it.")
    ] = False,
    watch: WatchOption = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Show one job: what it runs, its runs and members, where they are and why; of a failed one, the last lines of its output."""
    with config.connect(ctx) as client:
        if spec:
            item = client.job(job)
            print_data({"kind": "Job"} | (item.spec or {}), output if output.is_data else Format.YAML)
            return
        repeated(lambda: _show_job(client, job, output), watch=watch)


def elements(
    ctx: typer.Context,
    job: JobId,
    results: Annotated[
        bool,
        typer.Option("--results", help="Print what each element returned, by index: of arrays with `results: true`."),
    ] = False,
    jobs: Annotated[
        bool, typer.Option("--jobs", help="List the jobs of the elements: of arrays with `mode: jobs`.")
    ] = False,
    only: Annotated[
        str | None,
        typer.Option("--only", metavar="RANGES", help="With --jobs: only of these elements, such as 0-99,105."),
    ] = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Show the elements of an array by state, and how the failed ones have ended."""
    if results and jobs:
        raise UsageError("give one of --results and --jobs")
    if only is not None and not jobs:
        raise UsageError("--only goes with --jobs")
    with config.connect(ctx) as client:
        if jobs:
            print_element_jobs(client.jobs_of_elements(job, only), output)
            return
        if results:
            print_element_results(list(client.results_of_elements(job)), output)
            return
        found = client.elements(job)
        if output.is_data:
            print_data(data_of(found), output)
            return
        print_elements(found)


def _show_job(client: "Client", job: str, output: Format) -> None:
    item = client.job(job)
    if output.is_data:
        print_data(data_of(item), output)
        return
    # The owner of its cluster is told neither what a job says nor why it waits.
    explained = item.spec is not None and not item.state.is_terminal and not item.state.has_live_run
    waits = client.why(job) if explained else None
    after = _after(client.dependencies(job)) if item.spec is not None and item.spec.get("after") else ""
    _print_job(item, waits, after, wide=output is Format.WIDE)
    if item.state is JobState.FAILED and item.spec is not None:
        print_last_output(client, item)


def _after(found: "JobDependencies") -> str:
    """Return the predecessors of a job for people, such as ``a-1 (succeeded), b-2 (running, waits for ended)``."""
    shown = [
        f"{one.job} ({_CONDITION[one.condition_state].format(one.state, one.condition)})"
        for one in found.after[:_MOST_AFTER]
    ]
    on_groups = [
        f"group {one.group} ({_CONDITION[one.condition_state].format(one.state, one.condition)})"
        for one in found.after_groups[:_MOST_AFTER]
    ]
    more = found.after_count - len(shown) + len(found.after_groups) - len(on_groups)
    shown += on_groups
    return ", ".join([*shown, f"and {more} more"] if more > 0 else shown)


def _print_job(item: "JobView", waits: "JobReason | None", after: str, *, wide: bool) -> None:
    moment = now()
    print(f"{styled(item.id, 'bold')}  {styled(_state(item))}")
    by = f" by {item.submitted_by}" if item.submitted_by else ""
    by += f" through {item.submitted_through}" if item.submitted_through else ""
    last = item.runs[-1] if item.runs else None
    print_pairs(
        [
            ("queue", item.queue),
            ("priority", f"{item.priority} in class {item.priority_class}"),
            ("members", members_of(item)),
            ("elements", element_words(item.elements) if item.elements else None),
            ("array", f"element {item.element_of.element} of {item.element_of.job}" if item.element_of else None),
            ("after", after),
            ("parameters", ", ".join(f"{name}={value}" for name, value in (item.parameters or {}).items())),
            ("labels", ", ".join(f"{key}={value}" for key, value in item.labels.items())),
            ("group", item.group),
            ("submitted", f"{age(item.submitted_at, moment)}{by}"),
            ("started", age(item.started_at, moment) if item.started_at else None),
            ("ended", age(item.ended_at, moment) if item.ended_at else None),
            ("retries", f"{item.retries_used} used" if item.retries_used else None),
            ("burst", _burst(last) if last and last.burst else ""),
            ("where", f"{last.cluster}: {last.why_here}" if last and last.why_here else item.cluster),
            ("why", waits.sentence if waits else None),
            ("place", queue_position.place_of(waits) if waits else None),
            ("forecast", queue_position.forecast_of(waits.forecast) if waits else None),
            ("until", f"{item.hold_until.astimezone():%Y-%m-%d %H:%M:%S}" if item.hold_until else None),
            ("deadline", deadline_of(item, moment)),
            ("message", item.message),
            ("results", item.results_error),
            ("use", top.summary(item.use) if item.use else None),
            ("cost", cost_words(item.cost) if item.cost else None),
        ]
    )
    print_roles(item, wide=wide)
    print_results(item, wide=wide)
    _print_runs(item)
    if last is not None:
        _print_members(last, wide=wide)
        if wide:
            _print_scores(last)


def _print_runs(item: "JobView") -> None:
    if not item.runs:
        return
    moment = now()
    print()
    rows = []
    for run in item.runs:
        live = None if run.state.is_terminal else moment
        code = run.exit_code if run.exit_code is not None else f"signal {run.signal}" if run.signal else "-"
        ran = took(run.started_at, run.ended_at or live)
        silent = f"its agent was last in contact {age(run.silent_since, moment)}" if run.silent_since else ""
        rows.append(
            [
                run.id,
                run.cluster,
                run.state,
                age(run.leased_at, moment),
                ran,
                run.category or "-",
                code,
                "; ".join(filter(None, (run.message, silent))) or "-",
            ]
        )
    print_table(["RUN", "CLUSTER", "STATE", "SENT", "RAN", "CATEGORY", "EXIT", "MESSAGE"], rows)


def _print_members(run: "RunView", *, wide: bool) -> None:
    if not run.members:
        return
    print()
    members = run.members if wide else run.members[:_FEW_MEMBERS]
    print_table(["MEMBER", "STATE", "NODE", "EXIT", "RESTARTS", "MESSAGE"], [_member(member) for member in members])
    if len(members) < len(run.members):
        note(f"and {len(run.members) - len(members)} more; -o wide shows all")


def _member(member: dict[str, Any]) -> list[object]:
    code = member.get("exitCode")
    signal = member.get("signal")
    return [
        f"{member.get('role')}-{member.get('index')}",
        member.get("state", "-"),
        member.get("node") or "-",
        code if code is not None else f"signal {signal}" if signal else "-",
        member.get("restarts", 0),
        member.get("message") or "-",
    ]


def _burst(run: "RunView") -> str:
    """Return the burst policy of a run at a public cluster, and its cost."""
    of = run.burst or {}
    return f"policy {of.get('policy')}: {of.get('perHour')} an hour, {of.get('atMost')} at most"


def _print_scores(run: "RunView") -> None:
    table = run.scores.get("table") or []
    if not table:
        return
    columns = list(dict.fromkeys(("cluster", "score", *(key for row in table for key in row))))
    print(f"\nscores of the clusters where {run.id} fitted, the best first")
    print_table([column.upper() for column in columns], [[row.get(column, "-") for column in columns] for row in table])


def why(ctx: typer.Context, job: JobId, output: OutputOption = Format.TABLE) -> None:
    """Explain a job's state: its place in the queue and what each cluster lacks; -o wide adds the factors of the place."""
    with config.connect(ctx) as client:
        reason = client.why(job)
        if output.is_data:
            print_data(data_of(reason), output)
            return
        _print_why(reason, wide=output is Format.WIDE)
        if reason.state == JobState.FAILED:
            print_last_output(client, client.job(job))


_VERBS: dict[str, str] = {JobState.SUCCEEDED: "has", JobState.FAILED: "has", JobState.CANCELLED: "was"}
"""Words before a state that is an end; before all others it is ``is``."""


def _print_why(reason: "JobReason", *, wide: bool) -> None:
    tier = f" ({reason.tier})" if reason.tier != "not waiting" else ""
    verb = _VERBS.get(reason.state, "is")
    print(f"{styled(reason.job, 'bold')} {verb} {styled(reason.state)}: {reason.token}{tier}\n")
    print_sentence(reason.sentence)
    if reason.advice:
        print_sentence(reason.advice)
    if "until" in reason.details:
        print_sentence(f"Until {reason.details['until']}.")
    if "waitedFor" in reason.details:
        waited = reason.details["waitedFor"]
        print_sentence(f"Before that it waited: {waited.get('sentence', '')} ({waited.get('token', '')})")
    if place := queue_position.place_of(reason):
        print()
        print_sentence(place)
    if forecast := queue_position.forecast_of(reason.forecast):
        print_sentence(forecast)
    if reason.verdicts:
        print()
        print_table(
            ["CLUSTER", "CHECK", "FINDING"],
            [[verdict.cluster, verdict.check, verdict.sentence or "-"] for verdict in reason.verdicts],
        )
    if wide and reason.factors is not None:
        queue_position.print_factors(reason.factors)
    queue_position.note_age(reason)
