"""``webhooks``: secrets that sign messages to webhooks, and messages that were given up."""

from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli import config
from trainmaster.cli.confirm import agreed
from trainmaster.cli.errors import UsageError
from trainmaster.cli.output import Format, OutputOption, age, data_of, note, now, print_data, print_table

if TYPE_CHECKING:
    from datetime import datetime

    from trainmaster.client.http import Client
    from trainmaster.protocol.answers import DeadLetter, WebhookSecrets

webhooks_app = typer.Typer(
    help="Secrets of webhooks; messages that were given up: list them, try them again or drop them."
)

Ids = Annotated[list[int] | None, typer.Argument(metavar="ID...", min=1, show_default=False)]
QueueName = Annotated[str, typer.Argument(metavar="QUEUE", show_default=False)]
EveryOne = Annotated[bool, typer.Option("--all", help="All that you may see.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def register(app: typer.Typer) -> None:
    app.add_typer(webhooks_app, name="webhooks")


@webhooks_app.callback(invoke_without_command=True)
def webhooks(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option(min=1, help="How many at most, the newest first.")] = 50,
    output: OutputOption = Format.TABLE,
) -> None:
    """List webhook messages that were given up; with a sub-command, try them again or drop them."""
    if ctx.invoked_subcommand is not None:
        return
    with config.connect(ctx) as client:
        found = list(islice(client.dead_letters(), limit))
    if output.is_data:
        print_data([data_of(letter) for letter in found], output)
        return
    if not found:
        note("no webhook message was given up")
        return
    wide = output is Format.WIDE
    columns = ["ID", "JOB", "STATES", "ATTEMPTS", "GIVEN UP", "ERROR", *(["QUEUE", "URL"] if wide else [])]
    moment = now()
    print_table(columns, [_row(letter, moment, wide=wide) for letter in found])


def _row(letter: "DeadLetter", moment: "datetime", *, wide: bool) -> list[object]:
    row: list[object] = [letter.id, letter.job, ",".join(letter.states), letter.attempts]
    row += [age(letter.dead_at, moment), letter.error]
    return row + ([letter.queue, letter.url or "-"] if wide else [])


@webhooks_app.command()
def secret(ctx: typer.Context, queue: QueueName, output: OutputOption = Format.TABLE) -> None:
    """Print what signs messages of a queue's jobs: for their receivers, and nobody else."""
    with config.connect(ctx) as client:
        _print_secrets(client.webhook_secrets(queue), output)


@webhooks_app.command()
def rotate(
    ctx: typer.Context,
    queue: QueueName,
    overlap: Annotated[str, typer.Option(metavar="TIME", help="How long the secret before signs as well.")] = "1d",
    output: OutputOption = Format.TABLE,
) -> None:
    """Give a queue another secret and print it; the one before signs as well for a while."""
    with config.connect(ctx) as client:
        _print_secrets(client.rotate_webhook_secret(queue, overlap=overlap), output)


def _print_secrets(found: "WebhookSecrets", output: Format) -> None:
    """Print the current secrets, one a line; on stderr, that the ones before count for a while."""
    if output.is_data:
        print_data(data_of(found), output)
        return
    print("\n".join(found.secrets))
    if found.previous_until is not None:
        note(
            f"messages are signed with the secret before as well until {found.previous_until.astimezone():%Y-%m-%d %H:%M}"
        )


@webhooks_app.command()
def retry(ctx: typer.Context, ids: Ids = None, every: EveryOne = False, yes: Yes = False) -> None:
    """Try messages again, as often and as long as new ones."""
    with config.connect(ctx) as client:
        for letter in _chosen(client, ids, every=every, yes=yes, what="tried again"):
            client.retry_dead_letter(letter)
            print(f"{letter}  tried again")


@webhooks_app.command()
def drop(ctx: typer.Context, ids: Ids = None, every: EveryOne = False, yes: Yes = False) -> None:
    """Forget messages."""
    with config.connect(ctx) as client:
        for letter in _chosen(client, ids, every=every, yes=yes, what="dropped"):
            client.drop_dead_letter(letter)
            print(f"{letter}  dropped")


def _chosen(client: "Client", ids: list[int] | None, *, every: bool, yes: bool, what: str) -> list[int]:
    """The messages that are meant. Raises UsageError when it is not said."""
    if bool(ids) == every:
        raise UsageError("name messages by their ID, or all of them with --all")
    if ids:
        return ids
    found = [letter.id for letter in client.dead_letters()]
    if found and not agreed(f"{len(found)} messages will be {what}. Go on?", yes=yes):
        return []
    return found
