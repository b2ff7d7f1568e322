"""What the clusters' agents refuse to run, as one process knows it: read anew every few seconds while jobs are submitted."""

import logging
from typing import Any

from pydantic import ValidationError

from trainmaster.protocol.agent import CapacityReport
from trainmaster.protocol.states import ClusterKind
from trainmaster.protocol.tenants import ClusterSpec
from trainmaster_dispatcher.scheduling.state.from_specs import cluster_of
from trainmaster_dispatcher.scheduling.state.state import Cluster
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.store import agents

log = logging.getLogger(__name__)

_KEPT_SECONDS = 5.0


class ClusterAdmissions:
    """The clusters with what they admit; older than it is by some seconds, which costs a job at worst the way there and back."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._known: tuple[Cluster, ...] = ()
        self._read_at: float | None = None

    async def known(self) -> tuple[Cluster, ...]:
        """All clusters by name, their reports without nodes. Raises StoreAwayError."""
        now = self._stores.clock()
        if self._read_at is None or now - self._read_at > _KEPT_SECONDS:
            before, self._read_at = self._read_at, now  # others that come meanwhile go by what was known
            try:
                async with self._stores.database.transaction() as tx:
                    rows = await agents.admissions(tx)
            except BaseException:
                self._read_at = before
                raise
            self._known = tuple(_read(row) for row in rows)
        return self._known


def _read(row: Any) -> Cluster:
    """One that cannot be read is taken for one that has not reported, so that nothing is refused for it."""
    try:
        report = None
        if row.runtime is not None:
            told = {"capabilities": row.capabilities or (), "admission": row.admission}
            report = CapacityReport.model_validate({"groups": (), "runtime": row.runtime, "scheduler": "", **told})
        return cluster_of(row.id, ClusterSpec.model_validate(row.spec), report)
    except ValidationError as error:
        log.warning("what cluster %s admits cannot be read: %s", row.name, error)
        return Cluster(row.id, row.name, ClusterKind(row.kind))
