"""Requests that the clusters' agents refuse, and names that exist, cached by a process for a few seconds while jobs are submitted."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pydantic import ValidationError

from trainmaster.protocol.agent import CapacityReport
from trainmaster.protocol.errors import Mistake
from trainmaster.protocol.states import ClusterKind
from trainmaster.protocol.suggestions import did_you_mean
from trainmaster.protocol.tenants import ClusterSpec
from trainmaster_dispatcher.scheduling.state.declared_objects import Cluster
from trainmaster_dispatcher.scheduling.state.from_specs import cluster_of
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.submission_parsing import Named
from trainmaster_dispatcher.store import agents, tenants
from trainmaster_dispatcher.store.keys import Caller

log = logging.getLogger(__name__)

_KEPT_SECONDS = 5.0
_SURE_SECONDS = 0.5
"""The longest age of the cached names, in seconds, at which a name is said not to exist without reading again."""


class SeenCluster(NamedTuple):
    """Names that jobs may use of a cluster, and the queues that it is for."""

    name: str
    only_queues: tuple[str, ...]
    datasets: frozenset[str]
    resources: frozenset[str]


class ClusterAdmissions:
    """The clusters with their admission rules; some seconds old, which at worst costs a job a refused dispatch."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._known: tuple[Cluster, ...] = ()
        self._seen: tuple[SeenCluster, ...] = ()
        self._datasets: frozenset[str] = frozenset()
        """Declared datasets."""
        self._read_at: float | None = None
        self._first = asyncio.Lock()
        """Held while clusters are read for the first time: until then there is nothing to use meanwhile."""

    async def known(self) -> tuple[Cluster, ...]:
        """Return all clusters by name, their reports without nodes. Raises StoreAwayError."""
        if self._read_at is None:
            async with self._first:
                if self._read_at is None:
                    await self._read()
        elif self._stores.clock() - self._read_at > _KEPT_SECONDS:
            before, self._read_at = self._read_at, self._stores.clock()  # concurrent callers use the cached clusters
            try:
                await self._read()
            except BaseException:
                self._read_at = before
                raise
        return self._known

    async def _read(self) -> None:
        now = self._stores.clock()
        async with self._stores.database.transaction() as tx:
            rows = await agents.admissions(tx)
            declared = await tenants.DATASETS.every(tx)
        self._known = tuple(_read(row) for row in rows)
        self._seen = tuple(
            SeenCluster(one.name, one.only_queues, frozenset(row.datasets or ()), frozenset(row.resources or ()))
            for one, row in zip(self._known, rows, strict=True)
        )
        self._datasets = frozenset(one.spec.name for one in declared)
        self._read_at = now

    async def warnings(self, caller: Caller, named: Sequence[Named]) -> tuple[Mistake, ...]:
        """Return a warning for each name of what does not exist, as far as the caller may know. Raises StoreAwayError.

        Devices are not checked before a cluster has reported some.
        """
        found = self._missing(caller, named)
        if found and (self._read_at is None or self._stores.clock() - self._read_at > _SURE_SECONDS):
            await self._read()  # it may have been made since
            found = self._missing(caller, named)
        return found

    def _missing(self, caller: Caller, named: Iterable[Named]) -> tuple[Mistake, ...]:
        seen = [one for one in self._seen if caller.may_go_to(one.only_queues)]
        datasets = self._datasets.union(*(one.datasets for one in seen))
        resources = frozenset[str]().union(*(one.resources for one in seen))
        known = {"cluster": {one.name for one in seen}, "dataset": datasets, "resource": resources}
        out = []
        for what, name, path in named:
            if name not in known[what] and (resources or what != "resource"):
                hint = did_you_mean(name, sorted(known[what]))
                message = f"{_MISSING[what]} {name!r} now{hint}; until there is, the job waits"
                out.append(Mistake(path=path, message=message))
        return tuple(out)


_MISSING = {
    "cluster": "there is no cluster",
    "dataset": "no data is known as",
    "resource": "no cluster has the resource",
}


def _read(row: agents.AdmittingCluster) -> Cluster:
    """Return the cluster; an unreadable report counts as no report, so that nothing is refused for it."""
    try:
        report = None
        if row.runtime is not None:
            fields = {"capabilities": row.capabilities or (), "admission": row.admission}
            report = CapacityReport.model_validate({"groups": (), "runtime": row.runtime, "scheduler": "", **fields})
        return cluster_of(row.id, ClusterSpec.model_validate(row.spec), report)
    except ValidationError as error:
        log.warning("what cluster %s admits cannot be read: %s", row.name, error)
        return Cluster(row.id, row.name, ClusterKind(row.kind))
