"""Asking before something is changed."""

import typer

from trainmaster.cli.errors import UsageError
from trainmaster.cli.output import note


def agreed(question: str, *, yes: bool) -> bool:
    """Whether the person agrees. Raises UsageError when nobody is there to be asked."""
    if yes:
        return True
    try:
        if typer.confirm(question, err=True):
            return True
    except typer.Abort as error:
        raise UsageError("nothing was changed: nobody answered; --yes does it without being asked") from error
    note("nothing was changed")
    return False
