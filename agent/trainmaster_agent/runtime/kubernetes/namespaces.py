"""`JobNamespaces`: existing namespaces for jobs, and their uids, by which each owns the objects created in it."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Sequence

from trainmaster_agent.containment import contain
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.errors import KubeError, NotFoundError
from trainmaster_agent.kube.paths import NAMESPACES

log = logging.getLogger(__name__)

_LOOK_SECONDS, _PAUSE_SECONDS = 10.0, 0.5


class JobNamespaces:
    """Calls ``on_gone`` with each namespace that was deleted, even if another one of its name exists by now."""

    def __init__(self, api: ApiServer, names: Sequence[str], on_gone: Callable[[str], None]) -> None:
        self._api = api
        self._names = names
        self._on_gone = on_gone
        self._uids: dict[str, str] = {}
        self._missing: set[str] = set()
        self._doubted: set[str] = set()
        self._doubt = asyncio.Event()

    @property
    def lacks(self) -> str:
        """Return why no run can be started: no namespace for jobs exists. Empty if one does, or if that is unknown."""
        if len(self._missing) < len(self._names):
            return ""
        return f"namespace {', '.join(sorted(self._missing))} does not exist, or is being deleted"

    @property
    def existing(self) -> list[str]:
        return [name for name in self._names if name in self._uids]

    def uid(self, name: str) -> str:
        """Return the namespace's uid; empty if it does not exist, or is not known yet."""
        return self._uids.get(name, "")

    def is_missing(self, name: str) -> bool:
        return name in self._missing

    def doubt(self, name: str) -> None:
        """Have the namespace read again soon: something happened in it that its deletion would explain."""
        if name in self._uids:
            self._doubted.add(name)
            self._doubt.set()

    async def run(self) -> None:
        """Read all namespaces now and then, for ever."""
        while True:
            await asyncio.sleep(_PAUSE_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._doubt.wait()
            try:
                await self._look_again()
            except KubeError as error:
                log.info("cannot read the namespaces for jobs now, trying again: %s", error)
            except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
                contain("namespaces", error)

    async def _look_again(self) -> None:
        doubted, self._doubted = self._doubted, set()
        self._doubt.clear()
        await self.look(doubted)

    async def look(self, names: Collection[str] = ()) -> None:
        """Read these namespaces, or all. Raises the first KubeError after trying all; those not read stay as they were."""
        error: KubeError | None = None
        for name in names or self._names:
            try:
                found = await self._api.get(NAMESPACES, None, name)
            except NotFoundError:
                self._note(name, "")
            except KubeError as refused:
                error = error or refused
            else:
                ending = "deletionTimestamp" in found["metadata"]
                self._note(name, "" if ending else found["metadata"]["uid"])
        if error is not None:
            raise error

    def _note(self, name: str, uid: str) -> None:
        known = self._uids.pop(name, "")
        if uid:
            self._uids[name] = uid
            self._missing.discard(name)
        else:
            self._missing.add(name)
        if known and known != uid:
            self._on_gone(name)
