"""CPU time and memory of processes of this machine."""

import os
from collections.abc import Mapping

import psutil


def cpu_seconds(pid: int | None = None) -> float:
    """Used until now by a process, this one unless another is named, all its threads included."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def differences(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {name: value - before[name] for name, value in after.items()}


def load_average() -> float:
    """Of the last minute: how busy the machine was with whatever else."""
    return round(os.getloadavg()[0], 2)
