"""Calls that change objects of a namespace, for all resources: who calls, what is managed, and server-side apply."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fastapi import Request, Response

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster_dispatcher.api.context import State
from trainmaster_dispatcher.api.kube.bodies import Desired, read_object
from trainmaster_dispatcher.api.kube.calls import Writing, check_address, now
from trainmaster_dispatcher.api.kube.objects import Wire
from trainmaster_dispatcher.api.kube.selectors import refused
from trainmaster_dispatcher.domain import managed_fields
from trainmaster_dispatcher.store.keys import Caller

After = Callable[[Wire, managed_fields.Managers], managed_fields.ManagedObject]
"""A change: of an object, given its managers."""


@dataclass(frozen=True, slots=True)
class ObjectCall:
    """A call that changes objects of a namespace."""

    request: Request
    state: State
    caller: Caller
    namespace: str
    writing: Writing

    async def body(self) -> Wire:
        """Return the object in the body. Raises ProblemError."""
        return read_object(await self.request.body(), self.request.headers.get("content-type", ""))

    def updated(self, before: Wire, fields: Wire, managers: managed_fields.Managers) -> managed_fields.ManagedObject:
        """Return what is managed of an object after a change that is no apply."""
        return managed_fields.updated(before, fields, managers, self.writing.manager, now())

    def addressed(self, wanted: Desired, name: str) -> Desired:
        """Return what an object that is applied under a name wants. Raises ProblemError INVALID_SPEC."""
        wanted = wanted._replace(name=wanted.name or name)
        check_address(wanted, name, self.namespace)
        return wanted


def check_applies(writing: Writing) -> None:
    """Raise ProblemError INVALID_PARAMETER where a server-side apply does not say who applies."""
    if not writing.is_named:
        raise refused("fieldManager", "is required to apply")


async def change_or_create(change: Awaitable[Response], create: Callable[[], Awaitable[Response]]) -> Response:
    """Answer with an object that is changed, or created where it does not exist, as a server-side apply does. Raises ProblemError."""
    try:
        return await change
    except ProblemError as error:
        if error.code is not Code.NOT_FOUND:
            raise
    return await create()
