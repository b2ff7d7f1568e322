"""The command line's entry point. What takes long to import is imported by the command that needs it."""

import os
import platform
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from trainmaster import __version__
from trainmaster.cli import (
    admin,
    apply,
    audit,
    burst,
    clusters,
    errors,
    follow,
    jobs,
    money,
    simulate,
    simulations,
    steer,
    submit,
    webhooks,
)
from trainmaster.cli.config import Flags


class Commands(TyperGroup):
    """All commands, with errors told the same way for each."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError as error:
            _close_stdout()
            raise typer.Exit(errors.BROKEN_PIPE) from error
        except (typer.Exit, typer.Abort, TyperException):
            raise
        except errors.told_errors() as error:
            raise typer.Exit(errors.report(error)) from error
        except Exception as error:  # the last line: people get a sentence, not a trace
            raise typer.Exit(errors.report_unexpected(error)) from error
        return result


def _close_stdout() -> None:
    """Let what is still buffered go nowhere: nobody reads it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


app = typer.Typer(
    name="trainmaster",
    cls=Commands,
    help="Queue AI and batch jobs for a whole fleet of clusters.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def common(
    ctx: typer.Context,
    url: Annotated[str | None, typer.Option(envvar="TRAINMASTER_URL", help="Address of the dispatcher.")] = None,
    key: Annotated[str | None, typer.Option(envvar="TRAINMASTER_API_KEY", help="API key.", show_default=False)] = None,
) -> None:
    ctx.obj = Flags(url, key)


def version() -> None:
    """Print the version."""
    print(f"trainmaster {__version__} (Python {platform.python_version()})")


for module in (
    submit,
    jobs,
    follow,
    steer,
    admin,
    clusters,
    burst,
    money,
    simulate,
    simulations,
    webhooks,
    audit,
    apply,
):
    module.register(app)
app.command()(version)


def main() -> None:
    """The console's entry point."""
    # Processes of the system: serve, scheduler, agent, migrate, admin, up. Not for the daily commands, which shall start fast.
    own = {command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands}
    own |= {group.name or "" for group in app.registered_groups}
    if not (len(sys.argv) > 1 and sys.argv[1] in own):
        from trainmaster.cli.processes import register
        from trainmaster.cli.up import up

        register(app)
        app.command()(up)
    app()


if __name__ == "__main__":
    main()
