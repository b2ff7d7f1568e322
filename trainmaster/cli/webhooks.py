"""``webhooks``: secrets that sign webhook messages, and messages that could not be delivered, by e-mail and to chats as well."""

from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli import config
from trainmaster.cli.confirm import Yes, agreed
from trainmaster.cli.errors import UsageError
from trainmaster.cli.output import (
    Format,
    OutputOption,
    SecretOutputOption,
    age,
    data_of,
    note,
    now,
    print_data,
    print_table,
)
from trainmaster.cli.time_arguments import seconds_of

if TYPE_CHECKING:
    from datetime import datetime

    from trainmaster.client.http import Client
    from trainmaster.protocol.answers import DeadLetter, WebhookSecrets

webhooks_app = typer.Typer(help="Show and rotate webhook secrets; list, retry or drop undelivered messages.")

Ids = Annotated[list[int] | None, typer.Argument(metavar="ID...", min=1, show_default=False)]
QueueName = Annotated[str, typer.Argument(metavar="QUEUE", show_default=False)]
EveryOne = Annotated[bool, typer.Option("--all", help="All messages that you may see.")]


def register(app: typer.Typer) -> None:
    app.add_typer(webhooks_app, name="webhooks")


@webhooks_app.callback(invoke_without_command=True)
def webhooks(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option(min=1, help="The most messages to show, the newest first.")] = 50,
    output: OutputOption = Format.TABLE,
) -> None:
    """List messages that could not be delivered, by e-mail and to chats as well; with a sub-command, retry or drop them."""
    if ctx.invoked_subcommand is not None:
        return
    with config.connect(ctx) as client:
        found = list(islice(client.dead_letters(), limit))
    if output.is_data:
        print_data([data_of(letter) for letter in found], output)
        return
    if not found:
        note("no undelivered webhook message")
        return
    wide = output is Format.WIDE
    columns = ["ID", "ABOUT", "STATES", "ATTEMPTS", "GIVEN UP", "ERROR", *(["QUEUE", "URL"] if wide else [])]
    moment = now()
    print_table(columns, [_row(letter, moment, wide=wide) for letter in found])


def _row(letter: "DeadLetter", moment: "datetime", *, wide: bool) -> list[object]:
    row: list[object] = [
        letter.id,
        letter.job or letter.workflow or letter.group or "digest",
        ",".join(letter.states),
        letter.attempts,
    ]
    row += [age(letter.dead_at, moment), letter.error]
    return row + ([letter.queue, letter.url or "-"] if wide else [])


@webhooks_app.command()
def secret(ctx: typer.Context, queue: QueueName, output: SecretOutputOption = Format.TABLE) -> None:
    """Print the secret that signs messages about a queue's jobs and workflows: only for their receivers."""
    with config.connect(ctx) as client:
        _print_secrets(client.webhook_secrets(queue), output)


@webhooks_app.command()
def rotate(
    ctx: typer.Context,
    queue: QueueName,
    overlap: Annotated[str, typer.Option(metavar="TIME", help="How long the previous secret stays valid.")] = "1d",
    output: SecretOutputOption = Format.TABLE,
) -> None:
    """Replace a queue's webhook secret and print the new one; the previous one stays valid for a while."""
    seconds_of(overlap, "--overlap")
    with config.connect(ctx) as client:
        _print_secrets(client.rotate_webhook_secret(queue, overlap=overlap), output)


def _print_secrets(found: "WebhookSecrets", output: Format) -> None:
    """Print the current secrets, one a line; on stderr, until when the previous ones are valid."""
    if output.is_data:
        print_data(data_of(found), output)
        return
    print("\n".join(found.secrets))
    if found.previous_until is not None:
        note(
            f"messages are also signed with the previous secret until {found.previous_until.astimezone():%Y-%m-%d %H:%M}"
        )


@webhooks_app.command()
def retry(ctx: typer.Context, ids: Ids = None, every: EveryOne = False, yes: Yes = False) -> None:
    """Try to deliver messages again, as often and as long as new ones."""
    with config.connect(ctx) as client:
        for letter in _chosen(client, ids, every=every, yes=yes, what="tried again"):
            client.retry_dead_letter(letter)
            print(f"{letter}  tried again")


@webhooks_app.command()
def drop(ctx: typer.Context, ids: Ids = None, every: EveryOne = False, yes: Yes = False) -> None:
    """Delete undelivered messages."""
    with config.connect(ctx) as client:
        for letter in _chosen(client, ids, every=every, yes=yes, what="dropped"):
            client.drop_dead_letter(letter)
            print(f"{letter}  dropped")


def _chosen(client: "Client", ids: list[int] | None, *, every: bool, yes: bool, what: str) -> list[int]:
    """Return the chosen messages. Raises UsageError when none are named."""
    if bool(ids) == every:
        raise UsageError("name messages by their ID, or all of them with --all")
    if ids:
        return ids
    found = [letter.id for letter in client.dead_letters()]
    if not found:
        note("no undelivered webhook message")
    if found and not agreed(f"{len(found)} messages will be {what}. Continue?", yes=yes):
        return []
    return found
