"""Events about a run's objects, where they alone say why something does not go on.

Warnings about the object of a run, and about what its controller has made for it; and the last words of a scheduler about a gang.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.errors import KubeError
from trainmaster_agent.kube.paths import EVENTS
from trainmaster_agent.runtime.kubernetes.failure_classification import shortened
from trainmaster_agent.runtime.kubernetes.run_state import RunTracker
from trainmaster_agent.runtime.kubernetes.workload_objects import object_name

_FIRST_SECONDS, _AGAIN_SECONDS = 10.0, 30.0
"""From the first look that finds too few pods until events are read, and from then until they are read again."""
_FIRST_SECONDS_OF_GANGS, _AGAIN_SECONDS_OF_GANGS = 2.0, 10.0
"""The same for a gang that its queue holds back, whose scheduler looks at it once a second."""
_LONGEST_WORDS = 400


async def read_warning(api: ApiServer, tracker: RunTracker, now: float) -> None:
    """Read the last warning about a run whose object has existed for a while and does not have its pods; drop it once it has them.

    Events that cannot be read are no reason for anything: an agent without the right to do so says less.
    """
    if not _is_due(tracker, now, _FIRST_SECONDS, _AGAIN_SECONDS, wanted=_is_short(tracker)):
        return
    with suppress(KubeError):
        events = await _events(api, tracker, "type=Warning")
        tracker.warning = last_warning(events, object_name(tracker.run))


async def read_words(api: ApiServer, tracker: RunTracker, fields: str, now: float) -> None:
    """Read the last event with these fields about a gang that has waited for a while; where ``fields`` is empty none is needed."""
    if not _is_due(tracker, now, _FIRST_SECONDS_OF_GANGS, _AGAIN_SECONDS_OF_GANGS, wanted=bool(fields)):
        return
    with suppress(KubeError):
        events = await _events(api, tracker, fields)
        tracker.warning = shortened(str(max(events, key=_time).get("message")), _LONGEST_WORDS) if events else ""


def _is_due(tracker: RunTracker, now: float, first: float, again: float, *, wanted: bool) -> bool:
    """Return whether to read events now; forget the last words where none are wanted."""
    if not wanted:
        tracker.warning, tracker.warning_due = "", float("inf")
        return False
    if tracker.warning_due == float("inf"):
        tracker.warning_due = now + first
    if now < tracker.warning_due:
        return False
    tracker.warning_due = now + again
    return True


async def _events(api: ApiServer, tracker: RunTracker, fields: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    async for items, _ in api.pages(EVENTS, tracker.record.namespace, fields=fields):
        events += items
    return events


def _is_short(tracker: RunTracker) -> bool:
    progress = tracker.record.progress
    if tracker.workload is None or not progress.created or progress.verdict is not None or progress.stop is not None:
        return False
    early = (member for member in tracker.facts.wanted(tracker.sizes) if member[0] not in tracker.facts.late)
    return any(member not in tracker.pods for member in early)


def last_warning(events: Iterable[Mapping[str, Any]], name: str) -> str:
    """Return the last warning about the object ``name`` or what has its name with more behind it; empty if there is none.

    Pods are left out: their own states say more.
    """
    found = [one for one in events if _concerns(one.get("involvedObject") or {}, name)]
    if not found:
        return ""
    last = max(found, key=_time)
    of = last["involvedObject"]
    return shortened(f"{of.get('kind')} {of.get('name')}: {last.get('reason')}: {last.get('message')}", _LONGEST_WORDS)


def _concerns(of: Mapping[str, Any], name: str) -> bool:
    return of.get("kind") != "Pod" and f"{of.get('name', '')}-".startswith(f"{name}-")


def _time(event: Mapping[str, Any]) -> str:
    series = event.get("series") or {}
    metadata = event.get("metadata") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return next((str(time) for time in times if time), str(metadata.get("creationTimestamp") or ""))
