"""Confirmation before a change."""

from typing import Annotated

import typer

from trainmaster.cli.errors import UsageError
from trainmaster.cli.output import note

Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")]


def agreed(question: str, *, yes: bool) -> bool:
    """Return whether the person agrees. Raises UsageError when nobody can be asked."""
    if yes:
        return True
    try:
        if typer.confirm(question, err=True):
            return True
    except typer.Abort as error:
        raise UsageError("nothing was changed: there was nobody to confirm it; --yes skips the question") from error
    note("nothing was changed")
    return False
