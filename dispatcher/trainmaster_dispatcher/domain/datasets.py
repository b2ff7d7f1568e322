"""Data that jobs read: how much it is, where it is, and what it takes to move it. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Dataset:
    """``size`` in bytes. ``clusters``: where it was declared to be. ``regions``: where jobs that read it may run, if not anywhere."""

    name: str
    size: int
    clusters: frozenset[str] = frozenset()
    regions: tuple[str, ...] = ()
    remote: bool = False


class Holder(NamedTuple):
    """A cluster, as far as its data goes. ``egress``: of a byte that leaves it; ``uplink``: bytes in a second, None if not known."""

    name: str
    reported: frozenset[str]
    egress: float
    uplink: float | None


class Moving(NamedTuple):
    """What it takes to have data on a cluster: the part that is there, what the rest costs, and how long it takes, in seconds."""

    local: float = 1.0
    cost: float = 0.0
    seconds: float = 0.0


ALL_THERE = Moving()


def has(dataset: Dataset | None, name: str, holder: Holder) -> bool:
    """Whether data is on a cluster, as its agent or an admin says."""
    return name in holder.reported or (dataset is not None and holder.name in dataset.clusters)


def moving(names: Iterable[str], datasets: Mapping[str, Dataset], here: Holder, every: Iterable[Holder]) -> Moving:
    """For data that a job reads on a cluster: each that is not there comes from where that costs least, of equals soonest.

    Data that nobody has declared has no size; it is there, or the job is not. Moved one after the other.
    """
    wanted = [(name, datasets.get(name)) for name in names]
    known = [one for _, one in wanted if one is not None]
    total = sum(one.size for one in known)
    missing = [one for name, one in wanted if one is not None and not has(one, name, here)]
    if not missing:
        return ALL_THERE
    others, cost, seconds = list(every), 0.0, 0.0
    for one in missing:
        offers = [
            (one.size * other.egress, one.size / link if (link := _link(here, other)) else 0.0)
            for other in others
            if other.name != here.name and has(one, one.name, other)
        ]
        if offers:
            best = min(offers)
            cost += best[0]
            seconds += best[1]
    return Moving(1.0 - sum(one.size for one in missing) / total, cost, seconds)


def _link(one: Holder, other: Holder) -> float | None:
    """Bytes in a second between two clusters: the slower of both ends that is known."""
    known = [end.uplink for end in (one, other) if end.uplink]
    return min(known) if known else None
