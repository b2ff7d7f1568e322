"""`ServedPlacement`: whether the cluster still serves the kinds of objects that its placement creates and reads.

Another release of a scheduler, or of Kubernetes, may no longer serve the version that was found when the runtime was opened. Runs go
on meanwhile; nothing can be started. Where another version of the same kinds is served, the runtime is to be opened again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.errors import KubeError, NotFoundError
from trainmaster_agent.kube.paths import Resource
from trainmaster_agent.placement.choose import PlacementUnavailableError
from trainmaster_agent.placement.port import PlacementPort

log = logging.getLogger(__name__)

_LOOK_SECONDS = 10.0


class PlacementChangedError(Exception):
    """The cluster serves other versions of the scheduler's objects than those with which the runtime was opened."""


class ServedPlacement:
    """``choose`` returns the placement that a runtime opened now would have."""

    def __init__(
        self, api: ApiServer, placement: PlacementPort, choose: Callable[[], Awaitable[PlacementPort]]
    ) -> None:
        self._api = api
        self._placement = placement
        self._choose = choose
        self._resources = _resources(placement)
        self.lacks = ""
        """Why nothing can be started; empty where all is served."""

    async def run(self) -> None:
        """Look now and then, for ever. Raises PlacementChangedError."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await self.look()
            except KubeError as error:
                log.info("cannot look up the objects of %s now, trying again: %s", self._placement.name, error)

    async def look(self) -> None:
        """Find out what is served. Raises PlacementChangedError where a runtime opened now would use other versions, and KubeError."""
        missing = [one for one in self._resources if not await self._is_served(one)]
        if not missing:
            self.lacks = ""
            return
        with suppress(PlacementUnavailableError):
            other = await self._choose()
            if other.name == self._placement.name and _resources(other) != self._resources:
                raise PlacementChangedError(f"{words_on(missing[0])}, and serves another version")
        words = f"{words_on(missing[0])}, which gangs of {self._placement.name} need"
        if words != self.lacks:
            self.lacks = words
            log.warning("nothing can be started: %s", words)

    async def _is_served(self, resource: Resource) -> bool:
        try:
            answer = await self._api.call("GET", f"/api{'s' * ('/' in resource.version)}/{resource.version}")
        except NotFoundError:
            return False
        return any(one.get("name") == resource.plural for one in answer.get("resources") or ())


def words_on(resource: Resource) -> str:
    """Return the sentence about a kind that is not served in the version that the agent uses."""
    return f"the cluster no longer serves {resource.plural} of {resource.version}"


def _resources(placement: PlacementPort) -> tuple[Resource, ...]:
    return tuple(dict.fromkeys((*placement.created, *placement.watched)))
