"""Checkpoint signals: sends them to running members, and reports which members cannot get them and why."""

import asyncio
import logging
from collections.abc import Sequence

from trainmaster_agent.containment import contain
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.errors import ForbiddenError, KubeError, RefusedError
from trainmaster_agent.kube.pods import PodSight
from trainmaster_agent.runtime.kubernetes.failure_classification import shortened

log = logging.getLogger(__name__)

_NOT_FOUND_CODES = frozenset(("126", "127"))
_MOST_NAMED = 4
NO_PROGRAM = "its image has neither a kill program nor a shell (/bin/sh) to send it with"


async def send_checkpoint(api: ApiServer, pods: Sequence[PodSight], signal: str) -> dict[str, str]:
    """Send ``signal`` to each pod's first process; return by member (``role-index``) why it certainly did not get it.

    A member for which the API server did not answer counts as one that got the signal.
    """
    name = signal.removeprefix("SIG")
    outcomes = await asyncio.gather(*(_send(api, pod, name) for pod in pods), return_exceptions=True)
    not_told = {}
    for pod, outcome in zip(pods, outcomes, strict=True):
        if isinstance(outcome, Exception):
            contain("signal", outcome, pod.name, run=pod.run)
        elif isinstance(outcome, BaseException):
            raise outcome
        elif outcome:
            not_told[f"{pod.role}-{pod.index}"] = outcome
    return not_told


async def _send(api: ApiServer, pod: PodSight, name: str) -> str:
    """Return why a pod did not get its signal; empty if it did, or may have."""
    program, shell = ("kill", f"-{name}", "1"), ("/bin/sh", "-c", f"kill -{name} 1")
    for command in (program, shell):
        try:
            await api.execute(pod.namespace, pod.name, pod.container, command)
        except RefusedError as error:
            if _is_missing(error):
                continue  # slim images have no kill program, but a shell with kill built in
            log.warning("%s did not get its signal: %s", pod.name, error, extra={"run_id": pod.run})
            if isinstance(error, ForbiddenError):
                return "the agent may not run commands in its container (permission pods/exec)"
            return f"sending it failed: {shortened(str(error), 200)}"
        except KubeError as error:
            log.warning("unknown whether %s got its checkpoint signal: %s", pod.name, error, extra={"run_id": pod.run})
            return ""
        return ""
    log.warning("%s did not get its signal: %s", pod.name, NO_PROGRAM, extra={"run_id": pod.run})
    return NO_PROGRAM


def _is_missing(error: RefusedError) -> bool:
    """Return whether the image lacks the command: the runtime says so, or the exit code is a shell's for a missing command."""
    text = str(error).lower()
    causes = error.details.get("causes") or ()
    codes = {str(one.get("message")) for one in causes if one.get("reason") == "ExitCode"}
    return "executable file" in text or "no such file" in text or bool(codes & _NOT_FOUND_CODES)


def not_told_words(not_told: dict[str, str]) -> str:
    """Return the sentence on members that did not receive the checkpoint signal; empty for none."""
    by_reason: dict[str, list[str]] = {}
    for member, reason in sorted(not_told.items()):
        by_reason.setdefault(reason, []).append(member)
    return "; ".join(
        f"the checkpoint signal did not reach {_listed(members)}: {why}" for why, members in by_reason.items()
    )


def _listed(members: list[str]) -> str:
    more = len(members) - _MOST_NAMED
    return ", ".join(members[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
