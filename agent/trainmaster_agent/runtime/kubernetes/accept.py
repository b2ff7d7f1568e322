"""`Intake`: how a run comes to have its record, an anchor in the API server, before anything else is done for it.

Three answers are not what they seem. None at all: the record may have been stored, so the run may be neither started elsewhere nor
called off before that is known (``unsure``). A refusal for want of permission: an API server that has just started gives it until it
has read its roles. A namespace that is missing: where it is the only one, not this run has no place here, but no run has.
"""

import logging
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
from trainmaster_agent.runtime.kubernetes.record import AnchoredEnd, RunAnchor, UnreadableAnchorError, read_record
from trainmaster_agent.runtime.kubernetes.record_store import PERMISSION_PATIENCE
from trainmaster_agent.runtime.port import RuntimeAwayError

log = logging.getLogger(__name__)


class OrderIntake:
    """``home``: the agent's namespace. ``closed``: why nothing can start here, as the dispatcher was told; empty if it was not."""

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
        """Runs whose record was sent, and whether it was stored is not known."""
        self._forbidden: dict[str, float] = {}
        """Runs that may not be recorded, by since when, on the monotonic clock."""

    async def record(self, run: StartRun, namespace: str) -> RunAnchor | AnchoredEnd:
        """Write the record, or find the one that is there; or how the run has ended without one. Raises RuntimeAwayError."""
        found = await self._record(run, namespace)
        self._forbidden.pop(run.run, None)
        self.unsure.pop(run.run, None)
        return found

    async def _record(self, run: StartRun, namespace: str) -> RunAnchor | AnchoredEnd:
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
            return AnchoredEnd(
                RunState.RETURNED, f"there is no namespace {namespace} in this cluster, or it is being deleted"
            )
        record = RunAnchor(run, namespace, self._lease.term, owner_uid=self._namespaces.uid(namespace))
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

    async def _refused(self, run: StartRun, error: RefusedError) -> RunAnchor | AnchoredEnd:
        if run.run in self.unsure and (found := await self._find(run)) is not None:
            return found
        if isinstance(error, ForbiddenError) and error.is_permission:
            since = self._forbidden.setdefault(run.run, time.monotonic())
            if time.monotonic() - since < PERMISSION_PATIENCE:
                raise _not_recorded(run, error) from error
        return AnchoredEnd(RunState.RETURNED, f"refused by the cluster: {' '.join(str(error).split())[:500]}")

    def _not_started(self, run: StartRun, error: KubeError) -> AnchoredEnd:
        """For a run that was sent before the dispatcher knew that this cluster is closed: others may have room for it."""
        if not self._closed() or run.run in self.unsure:
            raise _not_recorded(run, error) from error
        return AnchoredEnd(RunState.PREEMPTED, f"it was not started: {self._closed()}")

    async def _find(self, run: StartRun) -> RunAnchor | None:
        """The record of an earlier attempt to write it, or of an agent before this one; None where there is none."""
        try:
            record = read_record(await self._api.get(CONFIG_MAPS, self._home, run.run))
        except NotFoundError:
            return None
        except (KubeError, UnreadableAnchorError) as error:
            raise _not_recorded(run, error) from error
        record.owner_uid = self._namespaces.uid(record.namespace)
        return record


def _not_recorded(run: StartRun, error: Exception) -> RuntimeAwayError:
    return RuntimeAwayError(f"run {run.run} could not be recorded: {error}")
