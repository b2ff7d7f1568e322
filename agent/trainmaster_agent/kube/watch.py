"""`KubeWatch`: keeps a copy of a list of objects up to date while it runs.

It lists page by page, then watches from the version of that list. A watch that ends is resumed where it was (bookmarks keep that
version recent); 410 means that the version is too old, and everything is listed again; that also happens now and then, so that a
missed change is not missed for ever. Protocol: https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Any, Protocol

import orjson

from trainmaster_agent.containment import contain
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.errors import (
    ForbiddenError,
    GoneError,
    KubeError,
    NotFoundError,
    TooManyRequestsError,
    UnavailableError,
    refused,
)
from trainmaster_agent.kube.paths import Resource, key_of

log = logging.getLogger(__name__)

_FIRST_BACK_OFF, _MOST_BACK_OFF = 0.2, 5.0
_SILENCE = 150.0
"""Seconds of silence after which a watch is closed: bookmarks come about once a minute."""
_SHORTEST_WATCH, _LONGEST_WATCH = 240, 480
_FIRST_WHEN_REFUSED, _SLEEP_WHEN_REFUSED = 2.0, 15.0
"""Pause after the first and after later refusals: an API server that has just started briefly refuses what it allows."""


class EventHandler(Protocol):
    """Owner of the copy. Objects are the API's own JSON and may be changed or kept."""

    def put(self, obj: dict[str, Any]) -> None:
        """Take an object that was added or changed, or is perhaps as before."""
        ...

    def drop(self, obj: dict[str, Any]) -> None:
        """Remove an object that was deleted; ``obj`` is its last state."""
        ...

    def listed(self, keys: set[str]) -> None:
        """Remove every object that is not in ``keys`` (``namespace/name``), after a listing has been put."""
        ...


class KubeWatch:
    """Watches one resource, in one namespace or everywhere, or one object by its ``name``.

    ``listed`` is set once the copy is complete for the first time.
    """

    def __init__(
        self,
        api: ApiServer,
        resource: Resource,
        handler: EventHandler,
        *,
        namespace: str | None = None,
        selector: str = "",
        name: str = "",
        resync: float = 1800.0,
        is_needed: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._resource = resource
        self._handler = handler
        self._namespace = namespace
        self._selector = selector
        self._name = name
        self._resync = resync
        self.is_needed = is_needed
        """Whether the owner needs it; a resource that is not served, or may not be read, is retried now and then."""
        self._clock = clock
        self._version = ""
        """Resource version to resume from; empty: list."""
        self._list_at = 0.0
        self.listed = asyncio.Event()
        self.heard_at = clock()
        """Time of the API server's last answer for it, on the given clock."""
        self.lists = 0
        """Number of full listings."""
        self.refused = ""
        """The server's refusal while it does not allow this watch."""

    async def run(self) -> None:
        """Watch for ever; wait out failures."""
        pause = _FIRST_BACK_OFF
        while True:
            wait = 0.0
            try:
                if not self._version or self._clock() >= self._list_at:
                    await self._list()
                await self._follow()
                pause = _FIRST_BACK_OFF
            except GoneError as error:
                log.info("listing all %s again: %s", self._resource.plural, error)
                self._version = ""
                wait = pause
            except (ForbiddenError, NotFoundError) as error:
                wait = _SLEEP_WHEN_REFUSED if self.refused else _FIRST_WHEN_REFUSED
                if str(error) != self.refused:
                    level = logging.WARNING if self.is_needed else logging.INFO
                    log.log(level, "%s cannot be watched: %s", self._resource.plural, error)
                self._version, self.refused = "", str(error)
            except (UnavailableError, TooManyRequestsError) as error:
                log.info("watching %s: %s", self._resource.plural, error)
                wait = pause
            except KubeError as error:
                log.warning("watching %s: %s", self._resource.plural, error)
                self._version = ""
                wait = max(pause, 1.0)
            except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
                contain("watch", error, self._resource.plural)
                self._version = ""
                wait = max(pause, 1.0)
            if wait:
                await asyncio.sleep(wait * random.uniform(0.7, 1.3))
                pause = min(pause * 2, _MOST_BACK_OFF)

    async def _list(self) -> None:
        keys: set[str] = set()
        version = ""
        async for items, of_list in self._api.pages(
            self._resource, self._namespace, selector=self._selector, name=self._name
        ):
            version = of_list
            for obj in items:
                keys.add(key_of(obj))
                self._hand_over(self._handler.put, obj)
            self.heard_at = self._clock()
            await asyncio.sleep(0)
        try:
            self._handler.listed(keys)
        except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
            contain("listed", error, self._resource.plural)
        self._version = version
        self._list_at = self._clock() + self._resync * random.uniform(0.8, 1.2)
        self.lists += 1
        self.listed.set()

    async def _follow(self) -> None:
        """Handle events until the server ends the watch. Raises KubeError."""
        left = max(1.0, min(random.uniform(_SHORTEST_WATCH, _LONGEST_WATCH), self._list_at - self._clock()))
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(int(left) + 1),
        }
        if self._selector:
            query["labelSelector"] = self._selector
        if self._name:
            query["fieldSelector"] = f"metadata.name={self._name}"
        async with self._api.stream(self._resource.path(self._namespace), query, silence=_SILENCE) as body:
            rest, self.refused = b"", ""
            async for chunk in body.iter_any():
                self.heard_at = self._clock()
                *lines, rest = (rest + chunk).split(b"\n") if rest else chunk.split(b"\n")
                for line in lines:
                    if line:
                        self._take(orjson.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        kind, obj = event["type"], event["object"]
        if kind == "ERROR":
            raise refused(int(obj.get("code", 500)), obj)
        self._version = obj["metadata"]["resourceVersion"]
        if kind in ("ADDED", "MODIFIED"):
            self._hand_over(self._handler.put, obj)
        elif kind == "DELETED":
            self._hand_over(self._handler.drop, obj)

    def _hand_over(self, take: Callable[[dict[str, Any]], None], obj: dict[str, Any]) -> None:
        """Give one object to the handler; contain the error of an object that it cannot take."""
        try:
            take(obj)
        except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
            contain("object", error, f"{self._resource.plural} {key_of(obj)}")
