"""The use of a pod's containers as the kernel counts it in their cgroups: a reading that is independent of kubelet and agent."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class KernelUse:
    """``cpu_seconds`` until now at ``at``, of ``time.monotonic``; ``memory``: bytes without files that were not used lately."""

    at: float
    cpu_seconds: float
    memory: int


def kernel_use(hierarchies: Sequence[Path], uid: str) -> KernelUse:
    """Return the use of all containers of a pod. ``hierarchies``: the folders of its node's cgroups."""
    containers = [folder for one in hierarchies for pod in one.rglob(f"pod{uid}") for folder in _folders_in(pod)]
    by_v2, by_v1, at, memory = 0.0, 0.0, time.monotonic(), 0
    for container in containers:
        if (container / "cpu.stat").exists() and (container / "cgroup.controllers").exists():
            by_v2 += _field(container / "cpu.stat", "usage_usec") / 1e6
        if (container / "cpuacct.usage").exists():  # cgroup v1
            by_v1 += int((container / "cpuacct.usage").read_text()) / 1e9
        if (container / "memory.current").exists():
            inactive = _field(container / "memory.stat", "inactive_file")
            memory += int((container / "memory.current").read_text()) - inactive
        if (container / "memory.usage_in_bytes").exists():  # cgroup v1
            inactive = _field(container / "memory.stat", "total_inactive_file")
            memory += int((container / "memory.usage_in_bytes").read_text()) - inactive
    cpu = by_v1 or by_v2  # a machine with both versions counts the same time in each
    assert cpu, f"pod {uid} has no cgroups in {hierarchies}"
    assert memory, f"the memory of pod {uid} is not counted in {hierarchies}"
    return KernelUse(at, cpu, memory)


def _folders_in(folder: Path) -> Iterator[Path]:
    return (one for one in folder.iterdir() if one.is_dir())


def _field(file: Path, name: str) -> int:
    fields = dict(line.split() for line in file.read_text().splitlines())
    return int(fields[name])
