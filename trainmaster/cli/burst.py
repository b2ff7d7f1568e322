"""``burst``: policies by which jobs go to public clusters, their state, and what they would do now."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli import completion, config
from trainmaster.cli.confirm import Yes
from trainmaster.cli.declared import Objects, Rows, list_objects, remove_object, show_object
from trainmaster.cli.errors import UsageError
from trainmaster.cli.output import Format, OutputOption, data_of, note, print_data, print_table
from trainmaster.protocol.resource_kinds import BURST_POLICY

if TYPE_CHECKING:
    from trainmaster.client.http import Client
    from trainmaster.protocol.bursting import BurstPolicySpec, Preview

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False, autocompletion=completion.policies)]
burst_app = typer.Typer(help="Burst policies: list, show, try out, pause and remove them.")

_SHOWN_FROM = Decimal("0.5")
"""Part of a budget from which its use is shown."""


def register(app: typer.Typer) -> None:
    app.add_typer(burst_app, name="burst")


@burst_app.callback(invoke_without_command=True)
def burst(ctx: typer.Context, output: OutputOption = Format.TABLE) -> None:
    """List burst policies, what runs at public clusters by them, and their budgets. To make one: trainmaster apply -f FILE"""
    if ctx.invoked_subcommand is not None:
        return
    list_objects(ctx, BURST_POLICY, output, _table)


def _table(_client: "Client", found: Objects, _wide: bool) -> tuple[list[str], Rows]:
    return ["NAME", "QUEUES", "AFTER", "JOBS", "BUDGETS", "STATE"], [_row(policy) for policy in found]


def _row(policy: Mapping[str, Any]) -> list[object]:
    status, most = policy.get("status"), policy["atMost"].get("jobs")
    if policy.get("shared"):
        jobs = "not shown to your key"
    else:
        jobs = "?" if status is None else str(status["jobs"])
        jobs = jobs if most is None else f"{jobs} of {most}"
    return [
        policy["name"],
        ", ".join(policy["queues"]),
        policy["when"]["after"],
        jobs,
        ", ".join(_budget(one) for one in (status or {}).get("budgets", ())) or _limits(policy["budget"]),
        "paused" if policy["paused"] else _state(policy),
    ]


def _state(policy: Mapping[str, Any]) -> str:
    if (status := policy.get("status")) is not None:
        return status["closed"] or "open"
    is_open = policy.get("open")
    return "unknown: the scheduler did not report it" if is_open is None else "open" if is_open else "closed now"


def _limits(budget: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{span} {budget[span]}" for span in ("hour", "day", "month", "job") if budget.get(span) is not None
    )


def _budget(one: Mapping[str, Any]) -> str:
    """Return the spent and committed amounts beside the budget."""
    spent, committed, limit = (Decimal(one[name]) for name in ("spent", "committed", "limit"))
    more = f"+{committed:.2f}" if committed else ""
    text = f"{one['span']} {spent:.2f}{more} of {limit:.2f}"
    part = spent / limit if limit else Decimal(1)
    text = f"{text} ({part:.0%})" if part >= _SHOWN_FROM else text
    expected = one.get("forecast")
    is_beyond = expected is not None and spent < limit < Decimal(expected)
    return f"{text}, {Decimal(expected):.2f} expected" if expected is not None and is_beyond else text


@burst_app.command()
def show(ctx: typer.Context, name: Name, output: OutputOption = Format.YAML) -> None:
    """Show one policy, its live runs and its budgets."""
    show_object(ctx, BURST_POLICY, name, output)


@burst_app.command()
def preview(
    ctx: typer.Context,
    files: Annotated[
        list[str] | None,
        typer.Option(
            "-f",
            "--file",
            metavar="FILE",
            help="File with policies to try out, instead of the stored ones of the same names.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Replace @NAME@ in the files.")
    ] = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Show which jobs would go to public clusters now, where, why and at what price, and why others would not. Changes nothing."""
    tried = _tried(files or [], settings or [])
    with config.connect(ctx) as client:
        found = client.preview_bursts(tried)
    if output.is_data:
        print_data(data_of(found), output)
        return
    if not found.previews:
        note(
            "no waiting job is subject to a burst policy: no policy names its queue, or it may start on a cluster of its own"
        )
        return
    columns = ["JOB", "JOBS", "QUEUE", "WAITED", "POLICY", "GOES", f"AN HOUR {found.currency}", "AT MOST", "WHY"]
    print_table(columns, [_preview_row(one) for one in found.previews])


def _tried(files: Sequence[str], settings: Sequence[str]) -> "list[BurstPolicySpec]":
    from trainmaster.cli.documents import parse_settings, read_documents, validated
    from trainmaster.protocol.bursting import BurstPolicySpec

    documents = read_documents(files, parse_settings(settings)) if files else ()
    out = [validated(BurstPolicySpec, one.value, one.place) for one in documents if one.kind == BURST_POLICY.kind]
    if files and not out:
        raise UsageError(f"there is no BurstPolicy in {', '.join(files)}")
    return out


def _preview_row(one: "Preview") -> list[object]:
    from trainmaster.cli.usage import money
    from trainmaster.protocol.durations import format_duration

    goes = one.cluster if one.goes else "-"
    price = "-" if one.price_per_hour is None else money(one.price_per_hour)
    most = "-" if one.at_most is None else money(one.at_most)
    waited = format_duration(one.waited_seconds)
    return [one.job, one.jobs, one.queue, waited, one.policy, goes, price, most, one.sentence]


@burst_app.command()
def pause(ctx: typer.Context, name: Name) -> None:
    """Pause a policy: no more jobs go by it, and live runs continue."""
    _set_paused(ctx, name, True)
    print(f"{name}  paused")


@burst_app.command()
def resume(ctx: typer.Context, name: Name) -> None:
    """Resume a paused policy: jobs go by it again."""
    _set_paused(ctx, name, False)
    print(f"{name}  resumed")


def _set_paused(ctx: typer.Context, name: str, paused: bool) -> None:
    with config.connect(ctx) as client:
        found = client.get_object(BURST_POLICY.kind, name)
        body = {key: value for key, value in found.items() if key != "status"}
        client.put(BURST_POLICY.kind, name, body | {"paused": paused})


@burst_app.command()
def remove(ctx: typer.Context, name: Name, yes: Yes = False) -> None:
    """Remove a policy; live runs by it continue. Asks first."""
    remove_object(ctx, BURST_POLICY, name, yes=yes)
