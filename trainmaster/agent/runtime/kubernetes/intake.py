"""`Intake`: how a run comes to have its record, an anchor in the API server, before anything else is done for it.

Three answers are not what they seem. None at all: the record may have been stored, so the run may be neither started elsewhere nor
called off before that is known (``unsure``). A refusal for want of permission: an API server that has just started gives it until it
has read its roles. One for want of the namespace: not this run has no place here, but no run has.
"""

import logging
import time
from collections.abc import Callable

from trainmaster.agent.kube.client import ApiServer
from trainmaster.agent.kube.errors import (
    ConflictError,
    ForbiddenError,
    KubeError,
    NotFoundError,
    RefusedError,
    UnavailableError,
)
from trainmaster.agent.kube.lease import LeaseKeeper
from trainmaster.agent.kube.paths import CONFIG_MAPS, NAMESPACES
from trainmaster.agent.runtime.kubernetes.anchors import PERMISSION_PATIENCE
from trainmaster.agent.runtime.kubernetes.config import KubernetesCluster
from trainmaster.agent.runtime.kubernetes.record import Record, UnreadableAnchorError, Verdict, read_record
from trainmaster.agent.runtime.port import RuntimeAwayError
from trainmaster.protocol.agent import StartRun
from trainmaster.protocol.states import RunState

log = logging.getLogger(__name__)


class Intake:
    """``closed``: why nothing can be started here, as the dispatcher was told; empty if it was not."""

    def __init__(
        self, api: ApiServer, lease: LeaseKeeper, config: KubernetesCluster, closed: Callable[[], str]
    ) -> None:
        self._api = api
        self._lease = lease
        self._config = config
        self._closed = closed
        self.unsure: dict[str, StartRun] = {}
        """Runs whose record was sent, and whether it was stored is not known."""
        self._forbidden: dict[str, float] = {}
        """Runs that may not be recorded, by since when, on the monotonic clock."""
        self.lacks = ""
        """Why no run can be recorded: none of the namespaces for jobs is there."""

    async def record(self, run: StartRun, namespace: str) -> Record | Verdict:
        """Write the record, or find the one that is there; or how the run has ended without one. Raises RuntimeAwayError."""
        found = await self._record(run, namespace)
        self._forbidden.pop(run.run, None)
        self.unsure.pop(run.run, None)
        return found

    async def _record(self, run: StartRun, namespace: str) -> Record | Verdict:
        record = Record(run, namespace, self._lease.term)
        try:
            await self._lease.confirm()
        except UnavailableError as error:
            return self._not_started(run, error)
        except KubeError as error:
            raise _not_recorded(run, error) from error
        try:
            stored = await self._api.create(CONFIG_MAPS, namespace, record.to_config_map(self._config.cluster))
        except ConflictError as error:
            found = await self._find(run, namespace)
            if found is None:
                raise _not_recorded(run, error) from error
            return found
        except RefusedError as error:
            return await self._refused(run, namespace, error)
        except KubeError as error:
            self.unsure[run.run] = run
            raise _not_recorded(run, error) from error
        record.take(stored)
        return record

    async def _refused(self, run: StartRun, namespace: str, error: RefusedError) -> Record | Verdict:
        if run.run in self.unsure and (found := await self._find(run, namespace)) is not None:
            return found
        if isinstance(error, ForbiddenError | NotFoundError):
            await self.look_for_namespaces()
            if self.lacks:
                return self._not_started(run, error)
        if isinstance(error, ForbiddenError) and error.is_permission:
            since = self._forbidden.setdefault(run.run, time.monotonic())
            if time.monotonic() - since < PERMISSION_PATIENCE:
                raise _not_recorded(run, error) from error
        return Verdict(RunState.RETURNED, f"refused by the cluster: {' '.join(str(error).split())[:500]}")

    def _not_started(self, run: StartRun, error: KubeError) -> Verdict:
        """For a run that was sent before the dispatcher knew that this cluster is closed: others may have room for it."""
        if not self._closed() or run.run in self.unsure:
            raise _not_recorded(run, error) from error
        return Verdict(RunState.PREEMPTED, f"it was not started: {self._closed()}")

    async def _find(self, run: StartRun, namespace: str) -> Record | None:
        """The record of an earlier attempt to write it, or of an agent before this one; None where there is none."""
        try:
            return read_record(await self._api.get(CONFIG_MAPS, namespace, run.run))
        except NotFoundError:
            return None
        except (KubeError, UnreadableAnchorError) as error:
            raise _not_recorded(run, error) from error

    async def look_for_namespaces(self) -> None:
        """Bring ``lacks`` up to date. What the API server does not tell leaves it as it is."""
        missing = []
        for namespace in self._config.job_namespaces:
            try:
                found = await self._api.get(NAMESPACES, None, namespace)
            except NotFoundError:
                missing.append(namespace)
            except KubeError as error:
                log.info("namespace %s cannot be read: %s", namespace, error)
                return
            else:
                if "deletionTimestamp" in found["metadata"]:
                    missing.append(namespace)
        all_missing = len(missing) == len(self._config.job_namespaces)
        self.lacks = f"there is no namespace {', '.join(missing)}, or it is being deleted" if all_missing else ""


def _not_recorded(run: StartRun, error: Exception) -> RuntimeAwayError:
    return RuntimeAwayError(f"run {run.run} could not be recorded: {error}")
