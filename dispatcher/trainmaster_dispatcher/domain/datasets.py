"""Data that jobs read: its size, its location, and the cost and time to move it. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Dataset:
    """``size`` in bytes. ``clusters``: its declared locations. ``regions``: where jobs that read it may run, if not anywhere."""

    name: str
    size: int
    clusters: frozenset[str] = frozenset()
    regions: tuple[str, ...] = ()
    remote: bool = False


class Holder(NamedTuple):
    """A cluster, as far as its data is concerned. ``egress``: cost of a byte that leaves it; ``uplink``: bytes per
    second, None if unknown."""

    name: str
    reported: frozenset[str]
    egress: float
    uplink: float | None


class Moving(NamedTuple):
    """The part of a job's data that is on a cluster, and the cost and time (seconds) to move the rest."""

    local: float = 1.0
    cost: float = 0.0
    seconds: float = 0.0


ALL_THERE = Moving()


def has(dataset: Dataset | None, name: str, holder: Holder) -> bool:
    """Return whether data is on a cluster, as its agent or an admin declares."""
    return name in holder.reported or (dataset is not None and holder.name in dataset.clusters)


def moving(names: Iterable[str], datasets: Mapping[str, Dataset], here: Holder, every: Iterable[Holder]) -> Moving:
    """Return the cost and time to move a job's data to a cluster: each missing data set from the cheapest cluster, then
    the fastest.

    Data that nobody has declared has no size; where it is missing, the job cannot run. Data sets are moved one after
    the other.
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
    """Return the bytes per second between two clusters: the lower known rate of both ends."""
    known = [end.uplink for end in (one, other) if end.uplink]
    return min(known) if known else None
