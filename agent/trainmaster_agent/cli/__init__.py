"""Commands of the agent."""

import typer


def register(app: typer.Typer) -> None:
    """Add the commands of this distribution to the command line."""
    from trainmaster_agent.cli.run import agent_app

    app.add_typer(agent_app, name="agent")
