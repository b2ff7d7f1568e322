"""Simulated use of members: made up from the run's id and what was requested, the same for the same moment."""

from collections.abc import Iterator
from math import pi, sin
from typing import NamedTuple

from trainmaster.cluster_model.device_products import is_gpu
from trainmaster.fake_cluster.run import FakeRun
from trainmaster.fake_cluster.seeded_random import draw
from trainmaster.protocol.states import RunState

_PERIOD = 300.0
"""Seconds of one wave of a member's use."""
_RISE = 60.0
"""Seconds after which a member has taken all the memory that it will take."""
_GPU_MEMORY = 80 * 2**30


class SimulatedUse(NamedTuple):
    """Use of one member: cores, bytes, percent of its GPUs, bytes of their memory; None without GPUs."""

    role: str
    member: int
    cpu: float
    memory: int
    gpu: float | None
    gpu_memory: int | None


def use_of(run: FakeRun, now: float) -> Iterator[SimulatedUse]:
    """Yield the use of a run's running members.

    Each run has a level of its own, between a tenth and nine tenths of what was requested, and its members swing around it.
    """
    if run.plan is None or run.state is not RunState.RUNNING:
        return
    needs = {
        role.name: {name: amount // role.need.members_per_unit for name, amount in role.need.resources.items()}
        for role in run.plan.roles
    }
    age = max(0.0, now - run.started_at)
    for member in run.members():
        if member.state != "running":
            continue
        need = needs[member.role]
        level = 0.1 + 0.8 * draw(0, run.id, member.role)
        phase = draw(0, run.id, member.role, member.index)
        part = level * (0.9 + 0.1 * sin(2 * pi * (age / _PERIOD + phase)))
        gpus = sum(amount for name, amount in need.items() if is_gpu(name))
        yield SimulatedUse(
            member.role,
            member.index,
            need.get("cpu", 0) / 1000 * part,
            int(need.get("memory", 0) * level * min(1.0, (age + 1) / _RISE)),
            100 * part if gpus else None,
            int(gpus * _GPU_MEMORY * level) if gpus else None,
        )
