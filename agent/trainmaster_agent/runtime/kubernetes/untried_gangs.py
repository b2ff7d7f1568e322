"""Gangs that their scheduler does not try again, although there may be room for them: a change of their object makes it do so."""

from contextlib import suppress

from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.errors import KubeError
from trainmaster_agent.kube.paths import Resource
from trainmaster_agent.runtime.kubernetes.run_state import RunTracker

TRIED_AT = "trainmaster.dev/tried-at"
"""Annotation of the object: seconds of the epoch at the last of these changes."""
_FIRST_SECONDS, _AGAIN_SECONDS = 5.0, 10.0
"""From the first look that finds the gang so until its object is changed, and from then until it is changed again."""


async def touch_object(api: ApiServer, tracker: RunTracker, resource: Resource | None, now: float) -> None:
    """Change the object of a gang, of the kind ``resource``, if the gang has been found so for a while; None: nothing has to change.

    An object that cannot be changed is left as it is: the scheduler tries all gangs again some day.
    """
    if resource is None:
        tracker.touch_due = float("inf")
        return
    if tracker.touch_due == float("inf"):
        tracker.touch_due = now + _FIRST_SECONDS
    if now < tracker.touch_due:
        return
    tracker.touch_due = now + _AGAIN_SECONDS
    patch = {"metadata": {"annotations": {TRIED_AT: str(round(now))}}}
    with suppress(KubeError):
        await api.patch(resource, tracker.record.namespace, tracker.run, patch)
