"""``notices``: what the user in use is notified of about the user's own jobs."""

from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli import config
from trainmaster.cli.errors import UsageError
from trainmaster.cli.output import Format, OutputOption, data_of, note, print_data
from trainmaster.cli.time_arguments import seconds_of

if TYPE_CHECKING:
    from trainmaster.protocol.notices import Notices

notices_app = typer.Typer(help="Show and set what you are notified of about your jobs.")


def register(app: typer.Typer) -> None:
    app.add_typer(notices_app, name="notices")


@notices_app.callback(invoke_without_command=True)
def notices(ctx: typer.Context, output: OutputOption = Format.TABLE) -> None:
    """Show what you are notified of; with a sub-command, set or remove it."""
    if ctx.invoked_subcommand is not None:
        return
    with config.connect(ctx) as client:
        _print(client.notices(), output)


@notices_app.command("set")
def set_notices(
    ctx: typer.Context,
    email: Annotated[bool, typer.Option("--email", help="Send e-mail to your own address.")] = False,
    chat: Annotated[
        str | None,
        typer.Option(metavar="FORMAT=URL", help="Send to a chat's incoming webhook: slack, teams or mattermost."),
    ] = None,
    event: Annotated[
        list[str] | None,
        typer.Option(
            help="An event: failed, succeeded, cancelled, deadline.atRisk, deadline.missed, session.warning, gpu.idle; repeatable."
        ),
    ] = None,
    min_duration: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only ends of jobs that ran for at least this time.")
    ] = None,
    most: Annotated[
        int | None, typer.Option(min=1, help="The most events of a window that are sent one by one.")
    ] = None,
    window: Annotated[str | None, typer.Option(metavar="TIME", help="How long further events are gathered.")] = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Set what you are notified of, in place of what was set before. Without --event: that jobs failed or succeeded."""
    from trainmaster.cli.documents import validated
    from trainmaster.protocol.notices import NoticesSpec

    fields: dict[str, object] = {"email": email}
    if chat is not None:
        name, is_given, url = chat.partition("=")
        if not is_given:
            raise UsageError("--chat is given as FORMAT=URL, such as slack=https://hooks.slack.com/services/...")
        fields["chat"] = {"format": name, "url": url}
    for option, text in (("--min-duration", min_duration), ("--window", window)):
        if text is not None:
            seconds_of(text, option)
    given = {"events": event, "minDuration": min_duration, "most": most, "window": window}
    spec = validated(NoticesSpec, fields | {name: value for name, value in given.items() if value is not None})
    with config.connect(ctx) as client:
        _print(client.put_notices(spec), output)


@notices_app.command()
def remove(ctx: typer.Context) -> None:
    """Be notified of nothing any more; what waits for a digest is dropped."""
    with config.connect(ctx) as client:
        client.remove_notices()
    print("notices  removed")


def _print(found: "Notices", output: Format) -> None:
    if output.is_data:
        print_data(data_of(found), output)
        return
    spec = found.notices
    if spec is None:
        note("you are notified of nothing: see trainmaster notices set --help")
        return
    if spec.email:
        print(f"e-mail     {found.address or 'you have no address'}" + ("" if found.sends_email else "; none is sent"))
    if spec.chat is not None:
        print(f"chat       {spec.chat.format} at {spec.chat.url}")
    print(f"events     {', '.join(spec.events)}")
    if spec.min_duration != "0s":
        print(f"only if    a job ran for {spec.min_duration} or longer")
    print(f"one by one {spec.most} events in {spec.window}; the rest in one message at the end")
