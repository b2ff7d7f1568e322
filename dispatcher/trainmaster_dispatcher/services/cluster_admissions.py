"""Requests that the clusters' agents refuse, cached by one process for a few seconds while jobs are submitted."""

import logging

from pydantic import ValidationError

from trainmaster.protocol.agent import CapacityReport
from trainmaster.protocol.states import ClusterKind
from trainmaster.protocol.tenants import ClusterSpec
from trainmaster_dispatcher.scheduling.state.declared_objects import Cluster
from trainmaster_dispatcher.scheduling.state.from_specs import cluster_of
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.store import agents

log = logging.getLogger(__name__)

_KEPT_SECONDS = 5.0


class ClusterAdmissions:
    """The clusters with their admission rules; some seconds old, which at worst costs a job a refused dispatch."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._known: tuple[Cluster, ...] = ()
        self._read_at: float | None = None

    async def known(self) -> tuple[Cluster, ...]:
        """Return all clusters by name, their reports without nodes. Raises StoreAwayError."""
        now = self._stores.clock()
        if self._read_at is None or now - self._read_at > _KEPT_SECONDS:
            before, self._read_at = self._read_at, now  # concurrent callers use the cached clusters
            try:
                async with self._stores.database.transaction() as tx:
                    rows = await agents.admissions(tx)
            except BaseException:
                self._read_at = before
                raise
            self._known = tuple(_read(row) for row in rows)
        return self._known


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
