"""Submitting on behalf of users: the key of a service account, such as a workflow engine or a notebook server, submits jobs that
are its users' in all that follows: fair shares, limits of users, filters, usage, and the right to change them.

A user whose jobs come through a key is a row of the table of keys that can authenticate nobody; whoever reads the name of a job's key
reads the user's.
"""

import re
from dataclasses import replace
from typing import Final

from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster_dispatcher.store import keys
from trainmaster_dispatcher.store.database import Database
from trainmaster_dispatcher.store.keys import Caller

MOST_USERS: Final = 10_000
"""Users through one key, so that a faulty service account cannot fill the table of keys."""
_NAME = re.compile(r"[\w.@+/:=-][\w.@+/:=, -]{0,99}", re.ASCII)


class OnBehalf:
    """The users for whom the keys of this process's callers have submitted. Each is looked up in the store once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[tuple[int, str], int] = {}

    def check(self, caller: Caller, user: str) -> None:
        """Raise ProblemError INVALID_PARAMETER for what can be no user's name, FORBIDDEN where the key may not act for the user."""
        if not _NAME.fullmatch(user):
            message = "a user's name has up to 100 letters, digits, spaces and . _ @ + / : = , - in it, the first no space or comma"
            raise ProblemError(
                Code.INVALID_PARAMETER,
                f"onBehalfOf: {message}",
                mistakes=(Mistake(path="onBehalfOf", message=message),),
            )
        if not caller.may_submit_for(user):
            listed = ", ".join(caller.on_behalf_of) or "nobody"
            raise ProblemError(
                Code.FORBIDDEN,
                f"{caller.title} may not submit on behalf of {user!r}; it may on behalf of: {listed}."
                " An admin makes a key that may: trainmaster keys make NAME --queue PATH --on-behalf-of USER",
            )

    async def submitter(self, caller: Caller, user: str | None) -> Caller:
        """Return whose jobs a submission of ``caller`` makes: those of ``user``, with the caller's rights; without one, the caller's.

        Raises ProblemError INVALID_PARAMETER for what can be no user's name, and FORBIDDEN where the key may not submit for the user.
        """
        if user is None or user == caller.name:
            return caller
        self.check(caller, user)
        known = self._known.get((caller.key_id, user))
        if known is None:
            async with self._database.transaction() as tx:
                known = await keys.user_through(tx, caller.key_id, user, MOST_USERS)
            if known is None:
                raise ProblemError(
                    Code.FORBIDDEN,
                    f"{caller.title} has submitted for {MOST_USERS} users, which is the most of one key",
                )
            self._known[caller.key_id, user] = known
        return replace(caller, key_id=known, name=user, through=caller.name)
