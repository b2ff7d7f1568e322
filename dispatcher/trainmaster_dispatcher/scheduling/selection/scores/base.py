"""The definition of a score, and the values that all scores measure. It knows no single score.

Each score is between 0 and 1 on an absolute curve, never normalised among the clusters that are compared.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from trainmaster.protocol.quantities import Resources
from trainmaster_dispatcher.scheduling.state.declared_objects import Cluster


@dataclass(frozen=True, slots=True)
class Fit:
    """A cluster where the gang fits: its free capacity before, the needs of the gang, and the other values that are scored.

    ``cost``: the expected cost of the run, in the installation's currency. ``wait``: the expected seconds until it starts there, with
    its data moved. ``local``: the part of its data that is there. ``trouble``: runs that were returned or lost there lately, decayed.
    ``preferred``: the part of its preferences that the cluster meets. ``domains``: the number of domains of its preferred level that
    it is spread over. ``elsewhere``: the part of the runs of its queue that is on other clusters. ``common``: the number of devices in
    the fleet of the product that it takes there, as a part of the number of the commonest product that it may have. ``predecessors``:
    the part of the jobs that it starts after that ran there last.
    """

    cluster: Cluster
    free: Resources
    capacity: Resources
    needs: Resources
    cost: float = 0.0
    wait: float = 0.0
    local: float = 1.0
    trouble: float = 0.0
    preferred: float = 1.0
    domains: int = 1
    elsewhere: float = 1.0
    common: float = 1.0
    predecessors: float = 1.0


Usage = Mapping[str, tuple[int, int]]
"""By resource that a cluster has: the amount in use and the total amount."""


def usage_of(free: Resources, capacity: Resources) -> Usage:
    """Return the amount in use and the total of each resource of a cluster."""
    return {name: (there - free.get(name, 0), there) for name, there in capacity.items() if there > 0}


class DependsOn(IntEnum):
    """The value that a score depends on beside the job: it decides when and how often the score is computed, and from what.

    The sum of each group is computed separately, in this order: the result of adding floats depends on the order.
    """

    KIND = 0
    """The kind of the cluster, which ``measure`` is given; looked up in a table."""
    CAPACITY = 1
    """The usage of the cluster and the needs of the gang: ``measure(usage, needs)``. It must not be lower where more is in use, as
    equivalent jobs go on to the cluster that took the first one.
    """
    COST = 2
    """The expected cost of the run, which ``measure`` is given. The score must be 1 where the cost is 0."""
    CLUSTER = 3
    """Other values of the cluster, but neither free capacity nor queue. ``measure`` is given a ``Fit`` that has ``cluster``,
    ``wait``, ``local``, ``trouble``, ``preferred`` and ``predecessors``; the score is cached until the cluster changes.
    """
    PLACEMENT = 4
    """The nodes on which the gang is placed: ``measure`` is given the whole ``Fit``."""
    DEVICES = 5
    """How common the devices are that the gang takes: ``measure`` is given ``Fit.common``. The score must be 1 where that is 1."""
    QUEUE = 6
    """The runs of the job's queue: ``measure`` is given the whole ``Fit``."""


class Applies(IntEnum):
    """The jobs that a score applies to: for others it is 1 on every cluster, and need not be measured."""

    ALWAYS = 0
    """The score may always be less than 1."""
    WITH_DATA = 1
    """The job reads datasets."""
    WITH_PREFERENCES = 2
    """The job prefers clusters."""
    WITH_LEVEL = 3
    """The job prefers a level of the topology."""
    WITH_TROUBLE = 4
    """Any cluster has returned or lost runs lately."""
    WITH_PREDECESSORS = 5
    """The job starts after others, which have run."""


class Curve(NamedTuple):
    """A function from the measured value to a number from 0 to 1, and its formula as the documentation shows it."""

    value: Callable[[Any], float]
    formula: str


def itself(amount: Any) -> Any:
    """Return the argument: the measure of a score that is given its measured value, and the curve of a part."""
    return amount


PART = Curve(itself, "the part")
"""For measured values that are parts already, from 0 to 1."""


def half_at(half: float, amount: str) -> Curve:
    """Return a curve that falls from 1 at 0 to a half at ``half``."""

    def value(measured: float) -> float:
        return 1.0 / (1.0 + measured / half)

    return Curve(value, f"1 / (1 + {amount} / {half:g})")


@dataclass(frozen=True, slots=True)
class Score:
    """A rating of the clusters that fit in one respect."""

    name: str
    """The name of its module, also used in profiles, decisions and ``protocol.scoring``."""
    unit: str
    """The unit of the measured value; empty if it has none."""
    measure: Callable[..., Any]
    """A function that returns the measured value of what ``depends_on`` names."""
    curve: Curve
    words: Callable[[Fit, Fit], str]
    """A function that returns why the first cluster is better by this score than the second, for people."""
    depends_on: DependsOn
    applies: Applies = Applies.ALWAYS
    gain: Callable[[Resources, Resources], float] | None = None
    """For ``CAPACITY``: the largest increase of the score on any cluster by these needs, compared with no needs; the second argument
    is the least amount of each resource on any cluster that has it. None: 1.
    """
    is_always_shown: bool = False
    """Whether decisions also show the score where it makes no difference."""

    @property
    def of(self) -> Callable[..., float]:
        """The function that returns the score of the arguments of ``measure``, not rounded."""
        measure, curve = self.measure, self.curve.value
        if curve is itself:
            return measure
        if measure is itself:
            return curve
        return lambda *given: curve(measure(*given))
