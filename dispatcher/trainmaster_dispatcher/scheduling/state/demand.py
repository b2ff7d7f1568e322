"""The devices that jobs need, counted from time to time: what is asked for devices depends on them.

A job counts once, when it starts, and half as much a week later, however long it runs: many short jobs that need a product by name
wait for whoever has it, even if they seldom need it at the same time. What runs at one moment would be luck: with few jobs on
few nodes of a product, a long run takes it in a minute in which nobody needs it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from math import inf
from typing import NamedTuple

from trainmaster_dispatcher.domain.shapes import RoleShape, Shape, Terms
from trainmaster_dispatcher.scheduling.state.plan import Start
from trainmaster_dispatcher.scheduling.state.state import SchedulerState

_SECONDS = 60.0
"""The time after which the jobs are counted again: a single job makes little difference."""
_HALF_LIFE = 7 * 86_400.0
_MOST_NEEDS = 200
"""The largest number of different needs that are remembered: those of which there is most."""
_LEAST = 1e-3
"""The smallest number of devices that is remembered."""
_MOST_CLASSES = 20_000
"""The number of classes of waiting jobs up to which all are counted; a million that all differ would take seconds."""
_GOLDEN_RATIO = 0.6180339887498949
"""Multiples of it are evenly spread modulo 1, and so are every second, third, ... of them."""

NeedKey = tuple[Terms, str, int]
"""The terms of members, a device, and how many of it each of them needs."""


class DeviceNeed(NamedTuple):
    """The number of devices that all members with the terms of a role need."""

    role: RoleShape
    device: str
    amount: float


class Demand(NamedTuple):
    """The devices that jobs needed which had started or waited at a time, in seconds since the epoch."""

    needs: Mapping[NeedKey, DeviceNeed]
    counted_at: float
    started: Mapping[NeedKey, DeviceNeed]
    """The needs of the jobs that have started until now."""

    def at(self, now: float, state: SchedulerState) -> "Demand":
        """Return the demand to count with at ``now``: this one, or a new one with the jobs of the state if this one is a while old."""
        passed = now - self.counted_at
        if passed < _SECONDS:
            return self
        started: Mapping[NeedKey, DeviceNeed]
        if passed == inf:
            started = _sum({}, Counter(run.shape_id for run in state.runs.values()), state.shapes)
        else:
            part = 0.5 ** (passed / _HALF_LIFE)
            started = {key: need._replace(amount=need.amount * part) for key, need in self.started.items()}
        return Demand(_most(_sum(started, waiting_jobs(state), state.shapes)), now, _most(started))

    def with_starts(self, starts: Iterable[Start], shapes: Mapping[int, Shape]) -> "Demand":
        """Return this demand with jobs that have started, to be counted later. A job that was returned counts once."""
        if self.counted_at == inf:
            return self
        new = Counter(start.job.shape_id for start in starts if not start.job.attempt)
        return self._replace(started=_sum(self.started, new, shapes)) if new else self


NO_DEMAND = Demand({}, -inf, {})


def waiting_jobs(state: SchedulerState, most: int = _MOST_CLASSES) -> Mapping[int, float]:
    """Return the number of waiting jobs by shape: counted, or of many classes, those of small ones estimated.

    With more than ``most`` classes, a class of few jobs is left out, or counted for several such classes; the chance is that of its
    part in their jobs.
    """
    found: defaultdict[int, float] = defaultdict(float)
    part = max(1.0, sum(map(len, state.waiting.values())) / most)
    position = 0.5
    for of_queue in state.waiting.values():
        for key, keys in of_queue.items():
            many = len(keys)
            if many >= part:
                found[key.shape_id] += many
                continue
            position = (position + _GOLDEN_RATIO) % 1.0
            if position * part < many:
                found[key.shape_id] += part
    return found


def _sum(
    needs: Mapping[NeedKey, DeviceNeed], jobs: Mapping[int, float], shapes: Mapping[int, Shape]
) -> dict[NeedKey, DeviceNeed]:
    """Return the needs with those of jobs, by shape."""
    roles: dict[NeedKey, RoleShape] = {}
    amounts: dict[NeedKey, float] = {}
    for shape_id, many in jobs.items():
        shape = shapes.get(shape_id)
        for role in shape.roles if shape is not None else ():
            for device in role.key[1]:
                amount = role.needs[device]
                key = role.terms, device, amount
                if key in amounts:
                    amounts[key] += amount * role.replicas * many
                elif amount:
                    roles[key], amounts[key] = role, amount * role.replicas * many
    found = dict(needs)
    for key, role in roles.items():
        before = found[key].amount if key in found else 0.0
        found[key] = DeviceNeed(role, key[1], before + amounts[key])
    return found


def _most(needs: Mapping[NeedKey, DeviceNeed]) -> dict[NeedKey, DeviceNeed]:
    kept = {key: need for key, need in needs.items() if need.amount >= _LEAST}
    if len(kept) <= _MOST_NEEDS:
        return kept
    return dict(sorted(kept.items(), key=lambda one: -one[1].amount)[:_MOST_NEEDS])
