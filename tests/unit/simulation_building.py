"""Builders for the tests of the simulation: clusters, orders, and a driver that watches what must always hold."""

from typing import Any

from trainmaster.fake_cluster.cluster import FakeCluster
from trainmaster.fake_cluster.fleet import FleetCluster
from trainmaster.fake_cluster.run import FakeRun
from trainmaster.protocol.agent import StartRun, StopRun
from trainmaster.protocol.states import RunState, StopCause

LABEL = "sim.trainmaster.dev/"


def cluster(*groups: dict[str, Any], now: float = 0.0, seed: int = 0, **fields: Any) -> FakeCluster:
    """Return a cluster of these groups; of two nodes with 4 CPUs each if none is given."""
    return FakeCluster(spec(*groups, **fields), now, seed)


def spec(*groups: dict[str, Any], **fields: Any) -> FleetCluster:
    return FleetCluster.model_validate({"name": "sim", "groups": groups or (group(),), **fields})


def group(name: str = "cpu", count: int = 2, cpu: int = 4, gpus: int = 0, **fields: Any) -> dict[str, Any]:
    resources = {"cpu": str(cpu), "memory": "8Gi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    return {"name": name, "count": count, "resources": resources, **fields}


def role(name: str = "worker", replicas: int = 1, cpu: int = 1, gpus: int = 0, **template: Any) -> dict[str, Any]:
    resources = {"cpu": str(cpu)} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    return {
        "name": name,
        "replicas": replicas,
        "template": {"command": ["x"], "resources": resources, **template},
    }


def order(
    run: str = "a",
    *roles: dict[str, Any],
    labels: dict[str, str] | None = None,
    pins: dict[str, dict[str, int]] | None = None,
    attempt: int = 1,
    timeout: float = 60.0,
    disconnect: float | None = None,
    **fields: Any,
) -> StartRun:
    """Return an order to start a run; ``labels`` are given without their prefix."""
    roles = roles or (role(),)
    prefixed = {LABEL + name: value for name, value in (labels or {}).items()}
    return StartRun(
        run=run,
        job=run,
        queue="q",
        attempt=attempt,
        token=attempt,
        generation=1,
        spec={"name": "test", "queue": "q", "labels": prefixed, "roles": list(roles), **fields},
        sizes={one["name"]: one["replicas"] for one in roles},
        pins=pins or {},
        placement_timeout_seconds=timeout,
        disconnect_seconds=disconnect,
    )


def stop(run: str = "a", grace: float = 10.0, generation: int = 2, cause: StopCause = StopCause.CANCEL) -> StopRun:
    return StopRun(run=run, generation=generation, cause=cause, grace_seconds=grace)


def state(at: FakeCluster, run: str = "a") -> RunState:
    return at.runs[run].state


def ended_at(at: FakeCluster, run: str = "a") -> float:
    """Let time pass until the run has ended; return the time of its end."""
    while not at.runs[run].state.is_terminal:
        at.advance(at.next_event_at())
    return at.now


def picture(run: FakeRun) -> tuple[object, ...]:
    """Return all that can be seen of a run."""
    return (
        run.id,
        run.generation,
        run.seq,
        run.state,
        run.message,
        run.verdict if run.state.is_terminal else None,
        run.placement,
        tuple(run.members()),
    )
