"""``burst``: the policies by which jobs go to public clusters, how they stand, and what they would do now."""

from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli import config
from trainmaster.cli.errors import UsageError
from trainmaster.cli.output import Format, OutputOption, data_of, note, print_data, print_table
from trainmaster.cli.tables import objects_for_table

if TYPE_CHECKING:
    from trainmaster.protocol.bursting import BurstPolicySpec, Preview

burst_app = typer.Typer(help="Burst policies: list, show, try out, pause and remove them.")
Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]

_TOLD = Decimal("0.5")
"""From which part of a budget on it is told how much is used up."""


def register(app: typer.Typer) -> None:
    app.add_typer(burst_app, name="burst")


@burst_app.callback(invoke_without_command=True)
def burst(ctx: typer.Context, output: OutputOption = Format.TABLE) -> None:
    """List burst policies, what is at public clusters by them, and their budgets. They are made with: trainmaster apply -f FILE"""
    if ctx.invoked_subcommand is not None:
        return
    found = objects_for_table(
        ctx,
        "BurstPolicy",
        output,
        "there is no burst policy, so no job goes to a public cluster by one; trainmaster apply -f FILE makes them",
    )
    if not found:
        return
    columns = ["NAME", "QUEUES", "AFTER", "JOBS", "BUDGETS", "STATE"]
    print_table(columns, [_row(policy) for policy in found])


def _row(policy: dict[str, Any]) -> list[object]:
    status, most = policy.get("status"), policy["atMost"].get("jobs")
    jobs = "?" if status is None else str(status["jobs"])
    return [
        policy["name"],
        ", ".join(policy["queues"]),
        policy["when"]["after"],
        jobs if most is None else f"{jobs} of {most}",
        ", ".join(_budget(one) for one in (status or {}).get("budgets", ())) or _limits(policy["budget"]),
        "paused"
        if policy["paused"]
        else "unknown: no scheduler answers"
        if status is None
        else status["closed"] or "open",
    ]


def _limits(budget: dict[str, Any]) -> str:
    return ", ".join(f"{span} {budget[span]}" for span in ("hour", "day", "month") if budget.get(span) is not None)


def _budget(one: dict[str, Any]) -> str:
    """What was spent and what is still committed, of how much."""
    spent, committed, limit = (Decimal(one[name]) for name in ("spent", "committed", "limit"))
    more = f"+{committed:.2f}" if committed else ""
    text = f"{one['span']} {spent:.2f}{more} of {limit:.2f}"
    part = spent / limit if limit else Decimal(1)
    return f"{text} ({part:.0%})" if part >= _TOLD else text


@burst_app.command()
def show(ctx: typer.Context, name: Name, output: OutputOption = Format.YAML) -> None:
    """Show one policy and how it stands."""
    with config.connect(ctx) as client:
        found = client.get_object("BurstPolicy", name)
    print_data(found, output if output.is_data else Format.YAML)


@burst_app.command()
def preview(
    ctx: typer.Context,
    files: Annotated[
        list[str] | None,
        typer.Option("-f", "--file", metavar="FILE", help="Policies to try out, in place of those of their names."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Replaces @NAME@ in the files.")
    ] = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """What would go to public clusters now, where, why and at what price; and what does not, and why. Changes nothing."""
    tried = _tried(files or [], settings or [])
    with config.connect(ctx) as client:
        found = client.preview_bursts(tried)
    if output.is_data:
        print_data(data_of(found), output)
        return
    if not found.previews:
        note(
            "no job waits that a policy is asked about: none is for its queue, or it may start on a cluster of its own"
        )
        return
    columns = ["JOB", "JOBS", "QUEUE", "WAITED", "POLICY", "GOES", f"AN HOUR {found.currency}", "AT MOST", "WHY"]
    print_table(columns, [_preview_row(one) for one in found.previews])


def _tried(files: Sequence[str], settings: Sequence[str]) -> "list[BurstPolicySpec]":
    from trainmaster.cli.documents import parse_settings, read_documents, validated
    from trainmaster.protocol.bursting import BurstPolicySpec

    documents = read_documents(files, parse_settings(settings)) if files else ()
    out = [validated(BurstPolicySpec, one.value, one.place) for one in documents if one.kind == "BurstPolicy"]
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
    """Let nothing more go by a policy; what runs goes on."""
    _set_paused(ctx, name, True)
    print(f"{name}  paused")


@burst_app.command()
def resume(ctx: typer.Context, name: Name) -> None:
    """Let jobs go by a paused policy again."""
    _set_paused(ctx, name, False)
    print(f"{name}  resumed")


def _set_paused(ctx: typer.Context, name: str, paused: bool) -> None:
    with config.connect(ctx) as client:
        found = client.get_object("BurstPolicy", name)
        body = {key: value for key, value in found.items() if key != "status"}
        client.put("BurstPolicy", name, body | {"paused": paused})


@burst_app.command()
def remove(ctx: typer.Context, name: Name) -> None:
    """Remove a policy; what runs by it goes on."""
    with config.connect(ctx) as client:
        client.delete("BurstPolicy", name)
    print(f"{name}  removed")
