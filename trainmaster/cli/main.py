"""The command line's entry point. Each command imports its slow modules itself."""

import gc
import os
import platform
import signal
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from trainmaster import __version__
from trainmaster.cli import (
    access,
    admin,
    apply,
    attainment,
    audit,
    burst,
    clusters,
    command_help,
    completion,
    contexts,
    declared,
    declared_objects,
    doctor,
    efficiency,
    errors,
    files,
    groups,
    job_actions,
    jobs,
    member_streams,
    notices,
    queue_what_if,
    run,
    schedules,
    series,
    sessions,
    submit,
    support_bundle,
    top,
    usage,
    watch,
    webhooks,
    workflows,
)
from trainmaster.cli.config import Flags
from trainmaster.cli.start import INTERRUPTED
from trainmaster.protocol.states import Exit

_AGAIN_SECONDS = 0.01
"""Time after which a callback that swallowed Ctrl-C has ended."""
_GC_YOUNG = 20_000
"""Objects that are made before the collector looks for garbage. Modules are none, and a command imports up to a thousand: as often as
Python looks by itself, that takes a tenth of its start."""


class Commands(TyperGroup):
    """All commands, with uniform reporting of errors, and with examples in their help."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        command_help.give_examples(self)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands in sections, for users and for admins."""
        shown = {name: command for name, command in self.commands.items() if not command.hidden}
        for section, names in command_help.by_section(shown):
            with formatter.section(section):
                formatter.write_dl([(name, shown[name].get_short_help_str()) for name in names])

    def invoke(self, ctx: Any) -> Any:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on it is handled
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError as error:
            _close_stdout()
            raise typer.Exit(errors.BROKEN_PIPE) from error
        except typer.BadParameter as error:
            error.message = errors.in_words(error)
            raise
        except TyperException as error:
            errors.name_place(error)
            raise
        except (typer.Exit, typer.Abort):
            raise
        except errors.reported_errors() as error:
            raise typer.Exit(errors.report(error)) from error
        except Exception as error:  # the last resort: people get a sentence, not a stack trace
            if errors.is_interrupt(error):
                raise typer.Exit(INTERRUPTED) from error
            raise typer.Exit(errors.report_unexpected(error)) from error
        return result


def _close_stdout() -> None:
    """Discard buffered output: nobody reads it."""
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


def version() -> None:
    """Print the version."""
    print(f"trainmaster {__version__} (Python {platform.python_version()})")


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        version()
        raise typer.Exit


@app.callback()
def common(
    ctx: typer.Context,
    url: Annotated[
        str | None, typer.Option(help="Address of the dispatcher; by default TRAINMASTER_URL.", show_default=False)
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            help="API key; by default TRAINMASTER_API_KEY."
            " The list of processes shows it to all users of this machine; the variable and the file do not.",
            show_default=False,
        ),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(
            help="Context to use; by default TRAINMASTER_CONTEXT, else the one that 'contexts use' named.",
            show_default=False,
            autocompletion=completion.contexts,
        ),
    ] = None,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    ctx.obj = Flags(url, key, context)


for module in (
    run,
    submit,
    jobs,
    files,
    watch,
    member_streams,
    sessions,
    job_actions,
    declared,
    admin,
    queue_what_if,
    clusters,
    burst,
    schedules,
    workflows,
    groups,
    usage,
    top,
    series,
    attainment,
    efficiency,
    notices,
    webhooks,
    audit,
    apply,
    declared_objects,
    access,
    contexts,
    doctor,
    support_bundle,
):
    module.register(app)
app.command()(version)


def main() -> None:
    """Run the command line."""
    gc.set_threshold(_GC_YOUNG, 20, 50)
    sys.unraisablehook = _interrupt_again
    try:
        # Commands of other distributions need their imports; the common ones start without.
        own = {command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands}
        own |= {group.name or "" for group in app.registered_groups}
        if not (len(sys.argv) > 1 and sys.argv[1] in own):
            _add_commands()
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        # Python wraps an interrupt that comes while a class is made, as in the imports of commands.
        if not errors.is_interrupt(error):
            raise
        sys.exit(INTERRUPTED)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing is left that it could end


def _interrupt_again(dropped: "sys.UnraisableHookArgs") -> None:
    """Raise Ctrl-C again, a moment later, where Python has dropped its exception, as it does inside callbacks of weak references."""
    if issubclass(dropped.exc_type, KeyboardInterrupt):
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
    else:
        sys.__unraisablehook__(dropped)


_OTHERS = {
    "trainmaster-dispatcher": (
        *("up", "serve", "scheduler", "worker", "beat", "migrate", "admin"),
        *("backup", "restore", "simulate", "simulations"),
    ),
    "trainmaster-agent": ("agent",),
}
"""Commands of the other distributions, for installations without them."""


def _add_commands() -> None:
    """Add the commands of installed distributions; for the others, commands that say what to install."""
    found = {point.name: point for point in entry_points(group="trainmaster.commands")}
    for distribution, names in _OTHERS.items():
        point = found.pop(distribution, None)
        if point is not None:
            point.load()(app)
            continue
        for name in names:
            settings = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
            app.command(name, hidden=True, context_settings=settings)(_missing(name, distribution))
    for point in found.values():
        point.load()(app)


def _missing(name: str, distribution: str) -> Callable[[], None]:
    def say() -> None:
        typer.echo(f"the command '{name}' is not installed: install {distribution}", err=True)
        raise typer.Exit(Exit.MISSING_EXTRA)

    return say


if __name__ == "__main__":
    main()
