"""`LeaseKeeper`: leader election between replicas by a Lease of the API server.

It works as client-go's leader election, with two differences. A replica that cannot reach the API server keeps its Lease until
another replica takes it: meanwhile nothing can happen in the cluster, and afterwards no state has to be rebuilt. And before it
creates anything it reads the Lease again, because its own clock may have stood still.

``leaseTransitions`` rises with every acquisition: it is the *term* of the acting replica.
https://kubernetes.io/docs/concepts/architecture/leases/
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from trainmaster_agent.containment import contain
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.errors import ConflictError, KubeError, NotFoundError, UnavailableError
from trainmaster_agent.kube.paths import LEASES

log = logging.getLogger(__name__)

_FRESH = 0.1
"""Seconds for which a reading of the Lease is valid: batches of several runs in quick succession share it."""
_MARGIN = 0.2
"""Last part of the duration in which the holder no longer relies on it."""


class LeaseLostError(KubeError):
    """Another replica acts now; this one must not create or delete anything any more."""


class LeaseKeeper:
    """One replica's view of the Lease. After ``duration`` seconds without renewal another replica takes it.

    ``clock`` must go on while the machine is suspended.
    """

    def __init__(
        self,
        api: ApiServer,
        namespace: str,
        name: str,
        identity: str,
        duration: float,
        clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._duration = duration
        self._clock = clock
        self._lease: dict[str, Any] = {}
        """The Lease as last read or written."""
        self._renewed_at = -1e9
        self._confirmed_at = -1e9
        """Start of the last reading that showed this replica as holder."""
        self._reading: asyncio.Task[None] | None = None
        self._next_reading: asyncio.Task[None] | None = None
        self.term = 0
        self._answered_at = clock()

    def is_valid(self) -> bool:
        """Return whether this replica may act without reading the Lease again."""
        return self._clock() < self._renewed_at + self._duration * (1 - _MARGIN)

    @property
    def silent_for(self) -> float:
        """Seconds since the API server last answered."""
        return self._clock() - self._answered_at

    async def acquire(self) -> None:
        """Wait until this replica holds the Lease, also while another one renews it or the API server does not answer."""
        seen: tuple[str, str] | None = None
        seen_at = 0.0
        logged = ""
        while True:
            try:
                lease = await self._read()
            except KubeError as error:
                if str(error) != logged:
                    log.warning("cannot read the lease, trying again: %s", error)
                    logged = str(error)
                await asyncio.sleep(min(2.0, self._duration / 4))
                continue
            spec = (lease or {}).get("spec") or {}
            holder = spec.get("holderIdentity") or ""
            now = self._clock()
            sight = (holder, str(spec.get("renewTime")))
            if sight != seen:
                seen, seen_at = sight, now
            left = seen_at + float(spec.get("leaseDurationSeconds") or self._duration) - now
            if (lease is None or not holder or left <= 0) and await self._take(lease):
                log.info("this replica holds the lease and acts now, term %d", self.term)
                return
            if holder and holder != logged:
                log.info("waiting for the lease, which another replica holds: %s", holder)
                logged = holder
            pause = min(2.0, self._duration / 5) * random.uniform(0.8, 1.2)
            await asyncio.sleep(min(pause, left + 0.05) if left > 0 else pause)

    async def keep(self) -> None:
        """Renew for ever. Raises LeaseLostError once another replica holds the Lease."""
        while True:
            await asyncio.sleep(self._duration / 4 * random.uniform(0.9, 1.1))
            try:
                await self._renew()
            except (LeaseLostError, asyncio.CancelledError):
                raise
            except KubeError as error:
                log.warning("could not renew the lease, trying again: %s", error)
            except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
                contain("lease", error)  # without a renewal creations stop soon, and resume with the next one

    async def confirm(self) -> None:
        """Check that this replica holds the Lease, by a reading that began after this call or shortly before it.

        Raises LeaseLostError if another replica holds it, and KubeError. Concurrent callers share one reading.
        """
        if not self.is_valid():
            raise UnavailableError("the lease could not be renewed")
        if self._clock() - self._confirmed_at < _FRESH:
            return
        if self._next_reading is None:
            self._next_reading = asyncio.create_task(self._read_after(self._reading))
        await asyncio.shield(self._next_reading)

    async def raise_term(self, least: int) -> None:
        """Raise the term to at least ``least``; needed where the Lease was deleted and its count restarted. Raises KubeError."""
        if self.term < least:
            await self._write({**self._lease["spec"], "leaseTransitions": least})
            self.term = least

    async def release(self) -> None:
        """Give up the Lease, so that another replica can act at once."""
        if self._lease.get("spec", {}).get("holderIdentity") != self._identity or not self.is_valid():
            return
        self._renewed_at = -1e9
        free = {"holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            try:
                await self._write({**self._lease["spec"], **free})
            except ConflictError:
                # A renewal that was in flight when it was cancelled has been stored.
                lease = await self._read()
                self._check(lease)
                self._lease = lease or {}
                await self._write({**self._lease["spec"], **free})
        except KubeError as error:
            log.warning("could not release the lease, another replica takes it when it expires: %s", error)

    async def _read_after(self, earlier: "asyncio.Task[None] | None") -> None:
        if earlier is not None:
            await asyncio.wait((earlier,))  # whatever it ended with was raised to those who waited for it
        self._reading, self._next_reading = self._next_reading, None
        began = self._clock()
        lease = await self._read()
        self._check(lease)
        self._confirmed_at = began

    def _check(self, lease: dict[str, Any] | None) -> None:
        holder = ((lease or {}).get("spec") or {}).get("holderIdentity")
        if lease is None or holder != self._identity:
            self._renewed_at = -1e9
            raise LeaseLostError(f"the lease {self._namespace}/{self._name} is held by {holder or 'nobody'}")

    async def _read(self) -> dict[str, Any] | None:
        try:
            lease = await self._api.get(LEASES, self._namespace, self._name)
        except NotFoundError:
            self._answered_at = self._clock()
            return None
        self._answered_at = self._clock()
        return lease

    async def _take(self, lease: dict[str, Any] | None) -> bool:
        """Try to take the Lease; return whether this replica holds it now, False if another one was quicker."""
        term = int(((lease or {}).get("spec") or {}).get("leaseTransitions") or 0) + 1
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._duration)),
            "acquireTime": _now(),
            "leaseTransitions": term,
        }
        began = self._clock()
        try:
            if lease is None:
                body = {
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {"name": self._name, "namespace": self._namespace},
                    "spec": {**spec, "renewTime": _now()},
                }
                self._lease = await self._api.create(LEASES, self._namespace, body)
            else:
                self._lease = lease
                await self._write(spec)
        except ConflictError:
            return False
        except KubeError as error:
            log.warning("cannot take the lease, trying again: %s", error)
            return False
        self.term, self._renewed_at = term, began
        return True

    async def _renew(self) -> None:
        began = self._clock()
        try:
            await self._write(self._lease["spec"])
        except ConflictError:
            # Somebody changed the Lease; it is lost only if another replica took it.
            lease = await self._read()
            self._check(lease)
            self._lease = lease or {}
            await self._write(self._lease["spec"])
        except NotFoundError as error:
            self._renewed_at = -1e9
            raise LeaseLostError("the lease was deleted") from error
        self._renewed_at = began

    async def _write(self, spec: dict[str, Any]) -> None:
        body = {**self._lease, "spec": {**spec, "renewTime": _now()}}
        self._lease = await self._api.replace(LEASES, self._namespace, self._name, body)
        self._answered_at = self._clock()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
