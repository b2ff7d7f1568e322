"""``queues what-if``: what other quotas would have done with the jobs of the last days."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli import completion, config
from trainmaster.cli.admin import queues_app
from trainmaster.cli.errors import UsageError
from trainmaster.cli.output import Format, OutputOption, data_of, note, now, print_data, print_table
from trainmaster.cli.time_arguments import moment_of
from trainmaster.protocol.states import Exit

if TYPE_CHECKING:
    from trainmaster.client.http import Client
    from trainmaster.protocol.simulations import SimulationView

_AMOUNT = "FLAVOR=AMOUNT"


def register(_app: typer.Typer) -> None:
    queues_app.command("what-if")(what_if)


def what_if(
    ctx: typer.Context,
    path: Annotated[
        str, typer.Argument(metavar="QUEUE", show_default=False, autocompletion=completion.queues, help="The queue.")
    ],
    files: Annotated[
        list[str] | None,
        typer.Option("-f", "--file", metavar="FILE", help="File with edited queues: this one, or queues below it."),
    ] = None,
    guarantee: Annotated[
        list[str] | None,
        typer.Option(metavar=_AMOUNT, help="Guarantee of the queue, such as nvidia.com/gpu=24; none: without one."),
    ] = None,
    limit: Annotated[
        list[str] | None, typer.Option(metavar=_AMOUNT, help="Limit of the queue; none: without one.")
    ] = None,
    weight: Annotated[float | None, typer.Option(help="Weight of the queue.", show_default=False)] = None,
    since: Annotated[str, typer.Option(help="Begin of the replayed time: a duration ago, or a date.")] = "7d",
    until: Annotated[
        str | None, typer.Option(help="End of the replayed time; by default now.", show_default=False)
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the result, and compare the queues before and after.")
    ] = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Replay the jobs of the last days on the clusters of now, with the present quotas and with edited ones. Changes no queue.

    A worker of the installation does it in the background, as of trainmaster simulate --background.
    """
    from trainmaster.cli.documents import validated
    from trainmaster.protocol.simulations import QuotaWhatIfSpec

    moment = now()
    with config.connect(ctx) as client:
        edited = _edited(client, path, files or [], guarantee or [], limit or [], weight)
        times = {"since": moment_of(since, moment, "--since").isoformat()}
        if until is not None:
            times["until"] = moment_of(until, moment, "--until").isoformat()
        made = client.quota_what_if(path, validated(QuotaWhatIfSpec, {"queues": edited, **times}, "the edited queues"))
        if not wait:
            if output.is_data:
                print_data(data_of(made), output)
                return
            print(made.id)
            note(f"simulation {made.id} is queued; follow it with: trainmaster simulations show {made.id} --wait")
            return
        *_, found = client.watch_simulation(made.id)
    _show(found, output)


def _edited(
    client: "Client",
    path: str,
    files: Sequence[str],
    guarantees: Sequence[str],
    limits: Sequence[str],
    weight: float | None,
) -> list[dict[str, Any]]:
    """Return the edited queues: those of the files, and the queue of the command with what the options change. Raises UsageError."""
    from trainmaster.cli.documents import read_documents
    from trainmaster.protocol.resource_kinds import QUEUE

    found = (
        {one.value["path"]: dict(one.value) for one in read_documents(files, {}) if one.kind == QUEUE.kind}
        if files
        else {}
    )
    if guarantees or limits or weight is not None:
        queue = found[path] if path in found else _declared(client, path)
        resources = dict(queue.get("resources") or {})
        for field, texts in (("guaranteed", guarantees), ("limit", limits)):
            for text in texts:
                flavor, amount = _amount_of(text, "--guarantee" if field == "guaranteed" else "--limit")
                quota = dict(resources.get(flavor) or {})
                quota.pop(field, None)
                resources[flavor] = quota if amount == "none" else quota | {field: amount}
        changed = {"resources": resources} | ({} if weight is None else {"weight": weight})
        found[path] = queue | changed
    if not found:
        raise UsageError("say what to change: -f FILE with edited queues, --guarantee, --limit or --weight")
    return list(found.values())


def _amount_of(text: str, option: str) -> tuple[str, str]:
    """Return the flavor and the amount; a flavor may have a product with an equals sign in its name."""
    flavor, found, amount = text.rpartition("=")
    if not found or not flavor or not amount:
        raise UsageError(f"{option}: {text!r} is not {_AMOUNT}, such as nvidia.com/gpu=24")
    return flavor, amount


def _declared(client: "Client", path: str) -> dict[str, Any]:
    """Return a queue as it is declared."""
    from trainmaster.protocol.tenants import QueueSpec

    queue = next((one for one in client.queues() if one.path == path), None)
    if queue is None:
        raise UsageError(f"there is no queue {path!r} that you may use; trainmaster queues lists them")
    return {
        name: value
        for name, value in data_of(queue).items()
        if name in {field.alias or key for key, field in QueueSpec.model_fields.items()}
    }


def _show(found: "SimulationView", output: Format) -> None:
    from trainmaster.protocol.simulations import SimulationState

    if output.is_data:
        print_data(data_of(found), output)
    elif found.result is not None:
        columns = ["QUEUE", "CASE", "JOBS", "STARTED", "UNPLACED", "PREEMPTED", "P50 WAIT", "P95 WAIT", "SHARE"]
        print_table(columns, list(_rows(found.result["cases"])))
        note(f"simulation {found.id}; its report: trainmaster simulations show {found.id} --html report.html")
    else:
        note(f"simulation {found.id} {found.state.value}: {found.message}")
    if found.result is None:
        raise typer.Exit(Exit.JOB_CANCELLED if found.state is SimulationState.CANCELLED else Exit.JOB_FAILED)


def _rows(cases: Sequence[Mapping[str, Any]]) -> list[list[object]]:
    from trainmaster.protocol.durations import format_duration

    rows: list[list[object]] = []
    for path in sorted({path for case in cases for path in case["queues"]}):
        for case in cases:
            outcome, waits = case["queues"].get(path), case["byQueue"].get(path)
            if outcome is None or waits is None:
                continue
            counts = [waits["jobs"], outcome["started"], outcome["unplaced"], outcome["preempted"]]
            times = [format_duration(round(waits[name])) for name in ("p50Seconds", "p95Seconds")]
            rows.append([path, case["name"], *counts, *times, f"{outcome['share']:.1%}"])
    return rows
