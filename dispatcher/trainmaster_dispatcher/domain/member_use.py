"""Samples of what runs use: their sums, their peaks, and what has been used over time. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from trainmaster.cluster_model.device_products import is_gpu
from trainmaster.protocol.member_use import FRESH_INTERVALS, RoleUse

UNKNOWN = -1
"""An unknown value of a member, where values are stored as lists of numbers."""


class RequestedAmounts(NamedTuple):
    """Amounts that were requested for some members: thousandths of a core, bytes, GPUs; 0 where nothing was."""

    cpu: int = 0
    memory: int = 0
    gpu: int = 0
    """GPUs of these members alone."""
    shared_gpu: int = 0
    """GPUs that ``sharing`` members of the role share."""
    sharing: int = 1

    def times(self, count: int) -> "RequestedAmounts":
        """Return what was requested for a number of members, with GPUs that several share counted once."""
        shared = self.shared_gpu * -(-count // self.sharing)
        return RequestedAmounts(self.cpu * count, self.memory * count, self.gpu * count + shared)

    def plus(self, other: "RequestedAmounts") -> "RequestedAmounts":
        return RequestedAmounts(self.cpu + other.cpu, self.memory + other.memory, self.gpu + other.gpu)


def requested_by_role(shape: Mapping[str, Any]) -> dict[str, RequestedAmounts]:
    """Return what each member of a role requests, by role, of a shape as it is stored."""
    return {
        role["name"]: RequestedAmounts(
            role["needs"].get("cpu", 0),
            role["needs"].get("memory", 0),
            _gpus_among(role["needs"]),
            _gpus_among(role.get("shared", {})),
            role.get("membersPerUnit", 1),
        )
        for role in shape["roles"]
    }


def _gpus_among(amounts: Mapping[str, int]) -> int:
    return sum(amount for name, amount in amounts.items() if is_gpu(name))


def requested_of(each: Mapping[str, RequestedAmounts], sizes: Mapping[str, int]) -> RequestedAmounts:
    """Return what was requested for all members of a run. ``sizes``: their number by role."""
    total = RequestedAmounts()
    for role, size in sizes.items():
        total = total.plus(each.get(role, RequestedAmounts()).times(size))
    return total


class MemberValues(NamedTuple):
    """The last sample of a run's members. ``places``: role, first index and number, in the order of the values.

    A list is empty where its values are unknown for all members.
    """

    places: Sequence[tuple[str, int, int]]
    cpu: Sequence[int]
    memory: Sequence[int]
    peak_memory: Sequence[int]
    gpu: Sequence[int]
    gpu_memory: Sequence[int]
    restarts: Sequence[int] = ()
    oom_kills: Sequence[int] = ()
    near_misses: Sequence[int] = ()
    """Number of samples of the run with memory near the limit."""

    def members(self) -> list[tuple[str, int]]:
        """Return role and index of the members, in the order of the values."""
        return [(role, index) for role, first, many in self.places for index in range(first, first + many)]


@dataclass(frozen=True, slots=True)
class RunSums:
    """The sums of a run's last sample, and over the time for which its use was measured, in seconds.

    ``cpu`` in thousandths of a core and ``gpu`` in thousandths of a GPU at work. Amounts that were requested are those of the
    members of which the use is known. None: unknown.
    """

    members: int = 0
    cpu: int | None = None
    memory: int | None = None
    gpu: int | None = None
    gpu_memory: int | None = None
    requested_cpu: int | None = None
    requested_memory: int | None = None
    requested_gpu: int | None = None
    peak_memory: int | None = None
    cpu_measured: float = 0.0
    cpu_seconds: float = 0.0
    cpu_requested: float = 0.0
    gpu_measured: float = 0.0
    gpu_seconds: float = 0.0
    gpu_requested: float = 0.0
    peak_cpu: int | None = None
    restarts: int | None = None
    oom_kills: int | None = None
    near_misses: int | None = None


def measured_seconds(since_last: float | None, since_start: float | None, interval: int) -> float:
    """Return the seconds for which a new sample stands.

    Those since the last one, or since the run's start. What happened in a longer time than a few intervals without samples is unknown.
    """
    seconds = since_last if since_last is not None else min(since_start or 0.0, interval)
    return max(0.0, min(seconds, FRESH_INTERVALS * interval))


def sample(
    roles: Sequence[RoleUse],
    each: Mapping[str, RequestedAmounts],
    before: RunSums,
    last: MemberValues | None,
    seconds: float,
) -> tuple[RunSums, MemberValues]:
    """Return the sums and the values of a run with a new sample, which stands for ``seconds``.

    ``each``: what each member of a role requests; members of other roles are left out. ``before`` and ``last``: what was stored.
    """
    known = [role for role in roles if role.role in each]
    cpu, memory, gpu, gpu_memory = (_Column(known, name) for name in ("cpu", "memory", "gpu", "gpu_memory"))
    restarts, oom_kills, near = (_Column(known, name) for name in ("restarts", "oom_kills", "near_limit"))
    peaks = _peaks(known, memory.values, last)
    near_misses = _near_misses(known, near.values, last)
    used_gpu, requested_gpu = _gpus(known, each)
    requested_cpu = _requested(known, "cpu", each)
    stands = 0.0 if cpu.total is None else seconds
    gpu_stands = 0.0 if used_gpu is None else seconds
    sums = RunSums(
        members=sum(len(role.indexes) for role in known),
        cpu=cpu.total,
        memory=memory.total,
        gpu=used_gpu,
        gpu_memory=gpu_memory.total,
        requested_cpu=requested_cpu,
        requested_memory=_requested(known, "memory", each),
        requested_gpu=requested_gpu,
        peak_memory=max((one for one in (*peaks, before.peak_memory or 0) if one > 0), default=None),
        cpu_measured=before.cpu_measured + stands,
        cpu_seconds=before.cpu_seconds + stands * (cpu.total or 0) / 1000,
        cpu_requested=before.cpu_requested + stands * (requested_cpu or 0) / 1000,
        gpu_measured=before.gpu_measured + gpu_stands,
        gpu_seconds=before.gpu_seconds + gpu_stands * (used_gpu or 0) / 1000,
        gpu_requested=before.gpu_requested + gpu_stands * (requested_gpu or 0),
        peak_cpu=_larger(before.peak_cpu, max((one for one in cpu.values if one != UNKNOWN), default=None)),
        restarts=_larger(before.restarts, restarts.total),
        oom_kills=_larger(before.oom_kills, oom_kills.total),
        near_misses=before.near_misses if near.total is None else (before.near_misses or 0) + near.total,
    )
    columns = (cpu.values, memory.values, peaks, gpu.values, gpu_memory.values)
    return sums, MemberValues(_places(known), *columns, restarts.values, oom_kills.values, near_misses)


def _larger(before: int | None, now: int | None) -> int | None:
    return max((one for one in (before, now) if one is not None), default=None)


class _Column:
    """The values of all members as one list, empty if all are unknown, and their sum."""

    def __init__(self, roles: Sequence[RoleUse], name: str) -> None:
        found: list[int] = []
        self.total: int | None = None
        for role in roles:
            given: Sequence[int | None] = getattr(role, name)
            if not given:
                found += [UNKNOWN] * len(role.indexes)
                continue
            found += [UNKNOWN if value is None else value for value in given]
            numbers = [value for value in given if value is not None]
            if numbers:
                self.total = (self.total or 0) + sum(numbers)
        self.values: list[int] = [] if self.total is None else found


def _requested(roles: Sequence[RoleUse], name: str, each: Mapping[str, RequestedAmounts]) -> int | None:
    """Return what was requested for the members of which the value of this name is known; None if it is known of none."""
    total = None
    for role in roles:
        if many := sum(value is not None for value in getattr(role, name)):
            total = (total or 0) + many * int(getattr(each[role.role], name))
    return total


def _gpus(roles: Sequence[RoleUse], each: Mapping[str, RequestedAmounts]) -> tuple[int | None, int | None]:
    """Return the GPUs at work in thousandths, and the GPUs of these members; None where nothing is known.

    The percentage of a member that requests no GPU, as one that shares a GPU, counts as that of one GPU.
    """
    used = requested = None
    for role in roles:
        numbers = [value for value in role.gpu if value is not None]
        if numbers:
            gpus = each[role.role].gpu or 1
            used = (used or 0) + 10 * gpus * sum(numbers)
            requested = (requested or 0) + gpus * len(numbers)
    return used, requested


def _places(roles: Sequence[RoleUse]) -> list[tuple[str, int, int]]:
    """Return the members as ranges of indexes by role."""
    found: list[tuple[str, int, int]] = []
    for role in roles:
        for index in role.indexes:
            if found and found[-1][0] == role.role and found[-1][1] + found[-1][2] == index:
                found[-1] = (role.role, found[-1][1], found[-1][2] + 1)
            else:
                found.append((role.role, index, 1))
    return found


def _peaks(roles: Sequence[RoleUse], memory: Sequence[int], last: MemberValues | None) -> list[int]:
    """Return the most memory that each member has used in a sample; empty if nothing is known of any."""
    if last is None or not last.peak_memory:
        return list(memory)
    before = dict(zip(last.members(), last.peak_memory, strict=False))
    members = list(chain.from_iterable(((role.role, index) for index in role.indexes) for role in roles))
    now = memory or [UNKNOWN] * len(members)
    return [max(value, before.get(member, UNKNOWN)) for member, value in zip(members, now, strict=True)]


def _near_misses(roles: Sequence[RoleUse], near: Sequence[int], last: MemberValues | None) -> list[int]:
    """Return in how many samples each member was near its memory limit; empty if nothing is known of any."""
    had = dict(zip(last.members(), last.near_misses, strict=False)) if last is not None else {}
    members = list(chain.from_iterable(((role.role, index) for index in role.indexes) for role in roles))
    now = near or [UNKNOWN] * len(members)
    found = [
        before if value == UNKNOWN else max(before, 0) + value
        for value, before in zip(now, (had.get(member, UNKNOWN) for member in members), strict=True)
    ]
    return found if any(one != UNKNOWN for one in found) else []
