"""`RunAcceptor`: writes a run's record, a ConfigMap in the API server, before anything else is done for the run.

Three answers need care. No answer: the record may have been stored, so the run may be neither started elsewhere nor called off before
that is known (``unsure``). Forbidden: an API server that has just started refuses until it has read its roles. Namespace not found:
where it is the only namespace for jobs, the whole cluster is closed and not only this run refused.
"""

import time
from collections.abc import Callable

from trainmaster.protocol.agent import StartRun
from trainmaster.protocol.states import RunState
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.errors import (
    ConflictError,
    ForbiddenError,
    KubeError,
    NotFoundError,
    RefusedError,
    UnavailableError,
)
from trainmaster_agent.kube.lease import LeaseKeeper
from trainmaster_agent.kube.paths import CONFIG_MAPS
from trainmaster_agent.runtime.kubernetes.config import KubernetesCluster
from trainmaster_agent.runtime.kubernetes.namespaces import JobNamespaces
from trainmaster_agent.runtime.kubernetes.record import KubeRunRecord, RecordedEnd, UnreadableRecordError, read_record
from trainmaster_agent.runtime.kubernetes.record_store import PERMISSION_PATIENCE
from trainmaster_agent.runtime.port import RuntimeAwayError


class RunAcceptor:
    """``home``: the agent's namespace. ``closed``: why nothing can start here, as reported to the dispatcher; empty if it can."""

    def __init__(
        self,
        api: ApiServer,
        lease: LeaseKeeper,
        config: KubernetesCluster,
        namespaces: JobNamespaces,
        *,
        home: str,
        closed: Callable[[], str],
    ) -> None:
        self._api = api
        self._namespaces = namespaces
        self._home = home
        self._lease = lease
        self._config = config
        self._closed = closed
        self.unsure: dict[str, StartRun] = {}
        """Runs whose record was sent without an answer: it may or may not be stored."""
        self._forbidden: dict[str, float] = {}
        """Runs whose record was forbidden, with the time of the first refusal on the monotonic clock."""

    async def record(self, run: StartRun, namespace: str) -> KubeRunRecord | RecordedEnd:
        """Write the record, or return the existing one; or how the run has ended without one. Raises RuntimeAwayError."""
        found = await self._record(run, namespace)
        self._forbidden.pop(run.run, None)
        self.unsure.pop(run.run, None)
        return found

    async def _record(self, run: StartRun, namespace: str) -> KubeRunRecord | RecordedEnd:
        try:
            await self._lease.confirm()
            if not self._namespaces.uid(namespace):
                await self._namespaces.look((namespace,))
        except UnavailableError as error:
            return self._not_started(run, error)
        except KubeError as error:
            raise _not_recorded(run, error) from error
        if self._namespaces.is_missing(namespace) and run.run not in self.unsure:
            if self._namespaces.lacks:
                return self._not_started(run, NotFoundError(404, self._namespaces.lacks))
            return RecordedEnd(
                RunState.RETURNED, f"namespace {namespace} does not exist in this cluster, or is being deleted"
            )
        record = KubeRunRecord(run, namespace, self._lease.term, owner_uid=self._namespaces.uid(namespace))
        try:
            stored = await self._api.create(
                CONFIG_MAPS, self._home, record.to_config_map(self._config.cluster, self._home)
            )
        except ConflictError as error:
            found = await self._find(run)
            if found is None:
                raise _not_recorded(run, error) from error
            return found
        except RefusedError as error:
            return await self._refused(run, error)
        except KubeError as error:
            self.unsure[run.run] = run
            raise _not_recorded(run, error) from error
        record.take(stored)
        return record

    async def _refused(self, run: StartRun, error: RefusedError) -> KubeRunRecord | RecordedEnd:
        if run.run in self.unsure and (found := await self._find(run)) is not None:
            return found
        if isinstance(error, ForbiddenError) and error.is_permission:
            since = self._forbidden.setdefault(run.run, time.monotonic())
            if time.monotonic() - since < PERMISSION_PATIENCE:
                raise _not_recorded(run, error) from error
        return RecordedEnd(RunState.RETURNED, f"refused by the cluster: {' '.join(str(error).split())[:500]}")

    def _not_started(self, run: StartRun, error: KubeError) -> RecordedEnd:
        """Return the end of a run sent before the dispatcher knew that this cluster is closed: others may have free capacity."""
        if not self._closed() or run.run in self.unsure:
            raise _not_recorded(run, error) from error
        return RecordedEnd(RunState.PREEMPTED, f"it was not started: {self._closed()}")

    async def _find(self, run: StartRun) -> KubeRunRecord | None:
        """Return the record written by an earlier attempt or by an earlier agent; None where none exists."""
        try:
            record = read_record(await self._api.get(CONFIG_MAPS, self._home, run.run))
        except NotFoundError:
            return None
        except (KubeError, UnreadableRecordError) as error:
            raise _not_recorded(run, error) from error
        record.owner_uid = self._namespaces.uid(record.namespace)
        return record


def _not_recorded(run: StartRun, error: Exception) -> RuntimeAwayError:
    return RuntimeAwayError(f"run {run.run} could not be recorded: {error}")
