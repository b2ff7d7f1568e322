"""`WorkloadLook`: the rules for the next step of a run whose pods the controller of its object makes. Pure.

    over? ── stop or verdict: all leaves ── object has ended ── object is gone ── limits ── object missing: create ── waits, runs

The controller decides about its pods: it replaces those that fail or are taken away, and says when all has succeeded or failed. The
agent creates the object, removes it, and decides where the controller cannot: a gang without places in time, a container that never
starts, a lost dispatcher.
"""

from dataclasses import replace

from trainmaster.protocol.agent import RunEnd
from trainmaster.protocol.states import FailureCategory, RunState
from trainmaster.workload_kinds.kind import WorkloadEnd
from trainmaster_agent.kube.pods import PodSight
from trainmaster_agent.runtime.kubernetes.failure_classification import Failure, classify, shortened
from trainmaster_agent.runtime.kubernetes.reconcile import Assessment, Look
from trainmaster_agent.runtime.kubernetes.run_spec import Member
from trainmaster_agent.runtime.kubernetes.workload_objects import WorkloadSight

_LONGEST_WORDS = 600


class WorkloadLook(Look):
    """One assessment of a run whose pods the controller of its object makes."""

    def leave(self) -> Assessment:
        """Remove the object first, or its controller would replace the pods that are removed; the run is over once all are gone."""
        found, stored = super().leave(), self.sights.workload
        if stored is None:
            return found
        if stored.is_deleting:
            # Its pods are removed as those of other runs are; only the end waits until the object is gone.
            message = found.message or f"its {self._kind()} is being removed"
            return replace(found, progress=None, state=RunState.STOPPING, message=message)
        if not found.remove and found.progress is None:
            return found  # the members still save their state
        return Assessment(RunState.STOPPING, found.message, removes_workload=True, wake_at=found.wake_at)

    def reconcile(self) -> Assessment:
        found = super().reconcile()
        if found.progress is not None:
            return found
        stored = self.sights.workload
        if stored is not None and stored.round != self.progress.round:
            return replace(found, create=(), remove=(), removes_workload=not stored.is_deleting)
        if stored is None and not self.progress.created and self.now >= self.progress.not_before:
            return replace(found, create=(), creates_workload=True)
        return found

    def _decided(self) -> Assessment | None:
        sights = self.sights
        if (ended := self._lost()) is not None:
            return ended
        if sights.gang.refused:
            return self._end(RunState.RETURNED, sights.gang.refused)
        stored = sights.workload
        if stored is not None and stored.round == self.progress.round:
            if stored.end is not None:
                return self._ended_as(stored.end)
            if not self.progress.created:
                # The previous agent created it and could not record that.
                return self._decide(replace(self.progress, created=True))
            if sights.gang.evicted and all(pod.is_over or pod.deleting for pod in self.pods.values()):
                # The scheduler has suspended the object, and would place it here again: another cluster may have place sooner.
                return self._end(RunState.PREEMPTED, f"preempted by the cluster: {sights.gang.evicted}")
            if stored.is_deleting:
                return self._end(
                    RunState.PREEMPTED, f"preempted by the cluster: somebody deleted {self._object(stored)}"
                )
        elif stored is None and self.progress.created:
            return self._end(RunState.PREEMPTED, f"preempted by the cluster: somebody deleted its {self._kind()}")
        for pod in self.pods.values():
            if not pod.is_over and (troubled := self._troubled(pod)) is not None:
                return troubled
        return None

    def _ended_as(self, end: WorkloadEnd) -> Assessment:
        if end.has_succeeded:
            return self._end(RunState.SUCCEEDED, "")
        failed = self._last_failure()
        words = "; ".join(one for one in (end.message, "" if failed is None else failed.end.message) if one)
        message = shortened(words or f"its {self._kind()} has failed", _LONGEST_WORDS)
        if end.category is None and failed is not None:
            return self._end(RunState.FAILED, message, failed.end.model_copy(update={"message": message}))
        category = end.category or FailureCategory.EXIT
        return self._end(RunState.FAILED, message, RunEnd(category=category, message=message))

    def _last_failure(self) -> Failure | None:
        """Return the failure of the pod that has failed last; None if none of those that are left tells of one."""
        failed = [pod for pod in self.pods.values() if pod.stage == "failed"]
        judged = (classify(pod) for pod in sorted(failed, key=lambda pod: pod.version, reverse=True))
        return next((one for one in judged if isinstance(one, Failure)), None)

    def _waits_for(self) -> str:
        early = [member for member in self.wanted if member[0] not in self.facts.late]
        missing = sum(member not in self.pods for member in early)
        if not missing or not self.progress.created:
            return super()._waits_for()
        if missing == len(early) and self.sights.gang.message:
            return self.sights.gang.message
        made = f"its {self._kind()} has made {len(early) - missing} of the {len(early)} pods that start together"
        return f"{made}; {self.sights.warning}" if self.sights.warning else made

    def _missing(self) -> tuple[Member, ...]:
        return ()

    def _is_complete(self) -> bool:
        return False  # nothing depends on the number of its pods

    def _is_surplus(self, member: Member, pod: PodSight) -> bool:
        return False

    def _kind(self) -> str:
        return "object" if self.facts.workload is None else self.facts.workload.kind

    def _object(self, stored: WorkloadSight) -> str:
        return f"its {self._kind()} {stored.name}"
