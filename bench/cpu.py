"""CPU time and memory of processes of this machine."""

import os
from collections.abc import Mapping

import psutil


def cpu_seconds(pid: int | None = None) -> float:
    """Return the CPU seconds used until now by a process, by default this one, including all its threads."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def differences(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {name: value - before[name] for name, value in after.items()}


def load_average() -> float:
    """Return the load average of the last minute, which includes other work of the machine."""
    return round(os.getloadavg()[0], 2)
