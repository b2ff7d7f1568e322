"""Decisions of a cluster's own authorization (``SubjectAccessReview``), kept for as long as API servers keep them."""

import time
from collections.abc import Callable
from typing import NamedTuple

from trainmaster_agent.aggregation.requests import Attributes, User
from trainmaster_agent.kube.client import ApiServer

_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_KEPT_SECONDS = 10.0
_MOST_KEPT = 4096


class Decision(NamedTuple):
    """A decision on a request, and the reason that the cluster gives."""

    is_allowed: bool
    reason: str


class AccessReviews:
    """``clock``: in seconds, monotonic."""

    def __init__(self, api: ApiServer, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._clock = clock
        self._kept: dict[tuple[User, Attributes], tuple[Decision, float]] = {}

    async def decide(self, user: User, wanted: Attributes) -> Decision:
        """Return whether a user may do a request. Raises KubeError if the cluster's API server does not answer."""
        key, now = (user, wanted), self._clock()
        found = self._kept.get(key)
        if found is not None and now < found[1]:
            return found[0]
        spec = {
            "user": user.name,
            "uid": user.uid,
            "groups": list(user.groups),
            "extra": {name: list(values) for name, values in user.extra},
            "resourceAttributes": wanted.to_wire(),
        }
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        status = (await self._api.call("POST", _REVIEWS, body=body)).get("status", {})
        decision = Decision(bool(status.get("allowed")) and not status.get("denied"), str(status.get("reason", "")))
        if len(self._kept) >= _MOST_KEPT:
            self._kept = {one: kept for one, kept in self._kept.items() if now < kept[1]}
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        self._kept[key] = decision, now + _KEPT_SECONDS
        return decision
