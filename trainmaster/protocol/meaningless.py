"""Specifications that are valid and can never mean anything. Not in their models: what an older release stored must stay readable."""

from trainmaster.protocol.base import Strict
from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.errors import Mistake
from trainmaster.protocol.jobs import LONGEST_STOP_GRACE, JobSpec
from trainmaster.protocol.states import ClusterKind
from trainmaster.protocol.tenants import QueueSpec


def meaningless(spec: Strict) -> tuple[Mistake, ...]:
    """Return what no new specification may say, with paths inside of it."""
    if isinstance(spec, JobSpec):
        return _of_job(spec)
    if isinstance(spec, QueueSpec) and not spec.allowed_kinds:
        message = f"must name at least one of {', '.join(ClusterKind)}; without any, no job of the queue could run"
        return (Mistake(path="allowedKinds", message=message),)
    return ()


def _of_job(spec: JobSpec) -> tuple[Mistake, ...]:
    found = []
    if spec.time_limit is not None and parse_duration(spec.time_limit) <= 0:
        found.append(Mistake(path="timeLimit", message="must be above 0s: no job can run within no time"))
    if parse_duration(spec.stop_grace) > LONGEST_STOP_GRACE:
        message = "is at most 10m: until its members have ended, no other job gets what they hold"
        found.append(Mistake(path="stopGrace", message=message))
    for index, role in enumerate(spec.roles):
        if role.template is not None and "command" in role.template.model_fields_set and not role.template.command:
            message = "must name a program; left out, it is the image's entry point"
            found.append(Mistake(path=f"roles[{index}].template.command", message=message))
    return tuple(found)
