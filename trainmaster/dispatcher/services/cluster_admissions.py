"""What the clusters' agents refuse to run, as one process knows it: read anew every few seconds while jobs are submitted."""

import logging
from typing import Any

from pydantic import ValidationError

from trainmaster.dispatcher.domain.cluster_admission import AdmittingCluster
from trainmaster.dispatcher.services.stores import Stores
from trainmaster.dispatcher.store import agents
from trainmaster.protocol.agent import ReportedAdmission
from trainmaster.protocol.states import ClusterKind

log = logging.getLogger(__name__)

_KEPT_SECONDS = 5.0


class ClusterAdmissions:
    """The clusters with what they admit; older than it is by some seconds, which costs a job at worst the way there and back."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._known: tuple[AdmittingCluster, ...] = ()
        self._read_at: float | None = None

    async def known(self) -> tuple[AdmittingCluster, ...]:
        """All clusters by name. Raises StoreAwayError."""
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


def _read(row: Any) -> AdmittingCluster:
    """One that cannot be read admits everything here; its agent checks by itself."""
    try:
        admission = None if row.admission is None else ReportedAdmission.model_validate(row.admission)
    except ValidationError as error:
        log.warning("what cluster %s admits cannot be read: %s", row.name, error)
        admission = None
    return AdmittingCluster(
        name=row.name,
        kind=ClusterKind(row.kind),
        region=row.region,
        labels={"region": row.region, **row.labels} if row.region else row.labels,
        capabilities=None if row.capabilities is None else frozenset(row.capabilities),
        admission=admission,
    )
