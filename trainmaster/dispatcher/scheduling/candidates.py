"""What a cycle knows of the clusters: their rooms, and which of them come into question for jobs alike."""

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import NamedTuple

from trainmaster.dispatcher.scheduling.filters import PASSING, STATIC, Candidate, first_failing
from trainmaster.dispatcher.scheduling.fit import Fitted, Product, Shortfall, Size, fit, size_choices, take
from trainmaster.dispatcher.scheduling.lines import Amounts, Line, product_of
from trainmaster.dispatcher.scheduling.room import Room, empty_room
from trainmaster.dispatcher.scheduling.view import Cluster, View
from trainmaster.protocol.reasons import Check, Verdict
from trainmaster.protocol.states import ClusterKind

SILENT_SECONDS = 900.0
"""How long a cluster that is out of contact still counts as capacity."""


@dataclass(slots=True)
class Rooms:
    """The rooms of this cycle, made when first looked at."""

    view: View
    now_free: dict[int, Room] = field(default_factory=dict)
    sizes: dict[int, list[Size]] = field(default_factory=dict)
    full: dict[tuple[int, int, int, Product | None], Shortfall] = field(default_factory=dict)
    """By shape, size, cluster and product. Rooms only shrink during a cycle, so what had no room is not tried again."""
    options: dict[int, dict[tuple[int, int, Product | None], "Option | Verdict"]] = field(default_factory=dict)
    """By cluster, then by shape, number of sizes and product: holds until something is taken from the cluster's room."""
    changes: list[int] = field(default_factory=list)
    """The clusters whose rooms have changed, in order, so that a standing knows what it has not seen yet."""
    standings: dict["Alike", "Standing"] = field(default_factory=dict)
    candidates: dict["Alike", list[tuple[Cluster, Verdict | None]]] = field(default_factory=dict)
    """The clusters by name for jobs alike, with what rules each out whatever its room is."""

    def sizes_of(self, shape_id: int) -> list[Size]:
        if shape_id not in self.sizes:
            self.sizes[shape_id] = size_choices(self.view.shapes[shape_id])
        return self.sizes[shape_id]

    def free(self, cluster_id: int) -> Room:
        if cluster_id not in self.now_free:
            self.now_free[cluster_id] = Room.of(self.view, cluster_id)
        return self.now_free[cluster_id]

    def empty(self, cluster: Cluster) -> Room:
        return empty_room(self.view, cluster.id)

    def capacity(self, cluster: Cluster) -> Amounts:
        """What the empty cluster has on each line."""
        places: Amounts = {}
        for group in cluster.report.groups if cluster.report is not None else ():
            for name, amount in group.free.items():
                place = Line(name, product_of(group) if "/" in name else "", cluster.kind.value)
                places[place] = places.get(place, 0) + amount * group.count
        return self.view.lines.charge(places)

    def never_fits(self, shape_id: int, cluster: Cluster) -> str | None:
        """Why the smallest size of the gang fits nowhere on the empty cluster; None when it does."""
        outcome = fit(self.view.shapes[shape_id], self.sizes_of(shape_id)[-1].members, self.empty(cluster))
        return outcome.sentence if isinstance(outcome, Shortfall) else None

    def fit_now(self, shape_id: int, size: Size, cluster_id: int, product: Product | None) -> Fitted | Shortfall:
        key = (shape_id, size.total, cluster_id, product)
        if key in self.full:
            return self.full[key]
        outcome = fit(self.view.shapes[shape_id], size.members, self.free(cluster_id), product)
        if isinstance(outcome, Shortfall):
            self.full[key] = outcome
        return outcome

    def take(self, option: "Option") -> None:
        take(self.free(option.cluster.id), option.fitted)
        self._note_change(option.cluster.id)

    def replace(self, cluster_id: int, room: Room) -> None:
        """The room of a cluster after runs were ended there for a job."""
        self.now_free[cluster_id] = room
        self._note_change(cluster_id)

    def _note_change(self, cluster_id: int) -> None:
        self.options.pop(cluster_id, None)
        self.changes.append(cluster_id)

    def looked_at(self, alike: "Alike", now: float) -> list[tuple[Cluster, Verdict | None]]:
        if alike not in self.candidates:
            clusters = sorted(self.view.clusters.values(), key=lambda cluster: cluster.name)
            self.candidates[alike] = [(cluster, ruled_out_for_now(self, alike, cluster, now)) for cluster in clusters]
        return self.candidates[alike]


@dataclass(frozen=True, slots=True)
class Option:
    """A cluster on which the gang fits now."""

    cluster: Cluster
    size: Size
    fitted: Fitted
    total: float
    parts: dict[str, float]
    charge: Amounts
    product: Product | None


@dataclass(slots=True)
class Standing:
    """How the clusters stand for jobs alike, kept up to date as rooms change.

    What a cluster would score is known without a fit, so they are ranked by that, and only the best ones are tried.
    """

    ranked: list[tuple[float, str, int]] = field(default_factory=list)
    """Minus the score, name and id of the clusters that are not known to lack room, the best first."""
    rank_of: dict[int, tuple[float, str, int]] = field(default_factory=dict)
    lacks: dict[int, Verdict] = field(default_factory=dict)
    seen: int = 0
    """How many of the rooms' changes it has taken in."""

    def put(self, cluster: Cluster, total: float) -> None:
        """A cluster has this score now, if the gang fits there."""
        self._take_out(cluster.id)
        self.lacks.pop(cluster.id, None)
        entry = self.rank_of[cluster.id] = (-total, cluster.name, cluster.id)
        insort(self.ranked, entry)

    def note_lack(self, cluster_id: int, verdict: Verdict) -> None:
        """The gang does not fit there now."""
        self._take_out(cluster_id)
        self.lacks[cluster_id] = verdict

    def _take_out(self, cluster_id: int) -> None:
        old = self.rank_of.pop(cluster_id, None)
        if old is not None:
            del self.ranked[bisect_left(self.ranked, old)]


class Alike(NamedTuple):
    """What of a class decides where it may go and whether it fits: all classes alike in it are blocked once one of them is."""

    shape_id: int
    sizes: int
    allowed_kinds: frozenset[ClusterKind]
    avoided: tuple[int, ...]
    limit: float
    """Seconds that it is counted on."""


def ruled_out_for_now(rooms: Rooms, alike: Alike, cluster: Cluster, now: float) -> Verdict | None:
    """Why a cluster is out of the question for jobs alike, whatever is free there now."""
    view, shape = rooms.view, rooms.view.shapes[alike.shape_id]
    known = view.ruled_out.setdefault((alike.shape_id, alike.allowed_kinds), {})
    for_ever = known.get(cluster.id)
    if for_ever is not None:
        return for_ever
    lease_left = view.lease_until.get(cluster.id, now) - now
    candidate = Candidate(alike.allowed_kinds, shape, cluster, lease_left, alike.avoided)
    if cluster.id not in known:
        failing = first_failing(STATIC, candidate)
        if failing is None:
            never = rooms.never_fits(alike.shape_id, cluster)
            failing = None if never is None else (Check.NEVER_FITS, never)
        known[cluster.id] = _verdict(cluster, failing)
    for_ever = known[cluster.id]
    return for_ever if for_ever is not None else _verdict(cluster, first_failing(PASSING, candidate))


def _verdict(cluster: Cluster, failing: tuple[Check, str] | None) -> Verdict | None:
    return None if failing is None else Verdict(cluster=cluster.name, check=failing[0], sentence=failing[1])


def capacity(view: View, rooms: Rooms, now: float) -> Amounts:
    """What all clusters have together on each line, the measure of shares. One out of contact counts for a while."""
    total: Amounts = {}
    for cluster in view.clusters.values():
        if cluster.report is None or view.lease_until.get(cluster.id, 0.0) + SILENT_SECONDS < now:
            continue
        for line, amount in rooms.capacity(cluster).items():
            total[line] = total.get(line, 0) + amount
    return total
