"""The dispatcher's commands: its processes, the whole system on one machine, and studies of what would be."""

import typer


def register(app: typer.Typer) -> None:
    """Add the commands of this distribution to the command line."""
    from trainmaster_dispatcher.cli import backup, processes, simulate, simulations
    from trainmaster_dispatcher.cli.up import up

    for module in (simulate, simulations, processes, backup):
        module.register(app)
    app.command()(up)
