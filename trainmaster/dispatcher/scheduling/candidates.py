"""What is known of the clusters: their rooms, and which of them come into question for jobs alike."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from trainmaster.dispatcher.domain.shapes import NO_WISHES, RoleShape, Wishes
from trainmaster.dispatcher.scheduling.backfill import Later
from trainmaster.dispatcher.scheduling.filters import PASSING, STATIC, Candidate, first_failing
from trainmaster.dispatcher.scheduling.fit import (
    Fitted,
    Product,
    Shortfall,
    Size,
    fit,
    fit_many,
    has_node,
    lack_of_one,
    only_role,
    size_choices,
    take,
)
from trainmaster.dispatcher.scheduling.lines import Amounts, Line, product_of
from trainmaster.dispatcher.scheduling.room import Room, empty_room
from trainmaster.dispatcher.scheduling.scores import (
    Fit,
    Measure,
    headroom,
    measure,
    score,
    total_score,
)
from trainmaster.dispatcher.scheduling.view import Cluster, LiveRun, View
from trainmaster.protocol.quantities import Resources
from trainmaster.protocol.reasons import Check, Reason, Verdict
from trainmaster.protocol.states import ClusterKind

SILENT_SECONDS = 900.0
"""How long a cluster that is out of contact still counts as capacity."""


_NO_KINDS: frozenset[ClusterKind] = frozenset()
_MOST_STANDINGS = 2048
_MOST_ASKED = 5000
_MOST_OPTIONS = 4096
"""Answers that are kept at most, those on options by cluster; whoever asks again pays for it again."""


class Rooms:
    """The rooms of the clusters and what follows from them, kept from one cycle to the next.

    A view tells the rooms that it has which clusters have changed; at the start of a cycle these are made anew from the view, as
    are those that the cycle before has put jobs into in thought. So a cycle never depends on what was decided before it.
    """

    def __init__(self, view: View) -> None:
        self.view = view
        self.touched: set[int] = set()
        """Clusters whose load has changed since the last cycle began."""
        self.reported = set(view.clusters)
        """Clusters that have changed themselves, have come or gone."""
        self.clusters: list[Cluster] = []
        """By name."""
        self._now_free: dict[int, Room] = {}
        self._taken: set[int] = set()
        self._later: dict[int, Later] = {}
        self._capacity: dict[int, Amounts] = {}
        self._sizes: dict[int, list[Size]] = {}
        self._allowed: dict[tuple[Wishes, frozenset[ClusterKind]], dict[int, Verdict | None]] = {}
        """By what a job and its queue ask of a cluster: what rules it out until it changes itself."""
        self._never: dict[int, dict[int, Verdict | None]] = {}
        """By shape: whether the gang fits on the empty cluster, as far as it was asked."""
        self._passing: dict[int, Verdict | None] = {}
        self._options: dict[int, dict[tuple[int, int, Product | None], Option | Shortfall]] = {}
        """By cluster, then by shape, number of sizes and product: holds until the cluster's room changes."""
        self._changes = 0
        self._changed_at: dict[int, int] = {}
        """By cluster, the latest one last: the number of its last change."""
        self._standings: dict[Alike, Standing] = {}
        self._looked_at: dict[Alike, list[tuple[Cluster, Verdict | None]]] = {}
        self._open: dict[tuple[Wishes, frozenset[ClusterKind], tuple[int, ...]], dict[int, Cluster]] = {}
        """By what rules clusters out whatever their room is: those that are not ruled out."""
        self._measures: dict[int, Measure] = {}
        """By cluster, until its room changes."""
        self._bare = Standing()
        """All clusters by what they score for a job that needs next to nothing, of everything: no job scores lower for that."""
        self._least: Resources = {}
        """The least amount of each resource that any cluster has."""
        self._asked: set[Alike] = set()
        """For whom the clusters were ranked once; who asks again is given a standing."""
        self._said: dict[int, dict[str, Verdict]] = {}
        """By cluster and sentence: verdicts on room."""

    @classmethod
    def of(cls, view: View) -> "Rooms":
        """Those that the view has, made when first asked for."""
        rooms: Rooms | None = view.rooms
        if rooms is None:
            rooms = view.rooms = cls(view)
        return rooms

    def note_run(self, run: LiveRun, many: int) -> None:
        """So many runs alike have come, or with -1 one has gone."""
        self.touched.add(run.cluster_id)
        later = self._later.get(run.cluster_id)
        if later is not None:
            later.note(run, many)

    def begin(self, now: float) -> None:
        """A cycle begins: take in what has changed."""
        if self.reported:
            self._take_in_reports()
        changed = self.touched | self._taken
        for cluster_id in self._taken & self._later.keys():
            self._later[cluster_id].forget_thoughts()
        for cluster_id in changed & self._now_free.keys():
            fresh = Room.of(self.view, cluster_id)
            fresh.rank(self._now_free[cluster_id])
            self._now_free[cluster_id] = fresh
            self._note_change(cluster_id)
        self.touched.clear()
        self._taken.clear()
        self._take_in_passing(now)
        if len(self._sizes) > 2 * len(self.view.shapes) + _MOST_STANDINGS:
            self._sizes.clear()
        for known in (self._never, self._allowed):
            if len(known) > _MOST_ASKED:
                known.clear()
        if len(self._open) > _MOST_ASKED:
            self._open.clear()

    def _take_in_reports(self) -> None:
        self.clusters = sorted(self.view.clusters.values(), key=lambda cluster: cluster.name)
        for cluster_id in self.reported:
            self._now_free.pop(cluster_id, None)
            self._later.pop(cluster_id, None)
            self._capacity.pop(cluster_id, None)
            self._said.pop(cluster_id, None)
            for known in (*self._allowed.values(), *self._never.values()):
                known.pop(cluster_id, None)
            self._note_change(cluster_id)
        self.reported.clear()
        self._least = {}
        for cluster in self.clusters:
            for name, amount in self.empty(cluster).total().items():
                if amount > 0:
                    self._least[name] = min(amount, self._least.get(name, amount))
        self._looked_at.clear()
        self._open.clear()

    def _take_in_passing(self, now: float) -> None:
        view = self.view
        for cluster in self.clusters:
            candidate = Candidate(_NO_KINDS, NO_WISHES, cluster, view.lease_until.get(cluster.id, now) - now, ())
            verdict = _verdict(cluster, first_failing(PASSING, candidate))
            if self._passing.get(cluster.id) != verdict:
                self._passing[cluster.id] = verdict
                self._note_change(cluster.id)
                self._looked_at.clear()
                self._open.clear()

    def _note_change(self, cluster_id: int) -> None:
        self._options.pop(cluster_id, None)
        self._measures.pop(cluster_id, None)
        self._changed_at.pop(cluster_id, None)
        self._changes += 1
        self._changed_at[cluster_id] = self._changes

    # Rooms

    def sizes_of(self, shape_id: int) -> "list[Size]":
        sizes = self._sizes.get(shape_id)
        if sizes is None:
            sizes = self._sizes[shape_id] = size_choices(self.view.shapes[shape_id])
        return sizes

    def free(self, cluster_id: int) -> Room:
        room = self._now_free.get(cluster_id)
        if room is None:
            room = self._now_free[cluster_id] = Room.of(self.view, cluster_id)
            room.rank()
        return room

    def later(self, cluster_id: int) -> Later:
        """The cluster when runs have ended there; what this cycle starts there may be added to it."""
        later = self._later.get(cluster_id)
        if later is None:
            later = self._later[cluster_id] = Later(self.view, cluster_id)
        return later

    def empty(self, cluster: Cluster) -> Room:
        return empty_room(self.view, cluster.id)

    def capacity(self, cluster: Cluster) -> Amounts:
        """What the empty cluster has on each line."""
        found = self._capacity.get(cluster.id)
        if found is None:
            found = self._capacity[cluster.id] = self._capacity_of(cluster)
        return found

    def _capacity_of(self, cluster: Cluster) -> Amounts:
        places: Amounts = {}
        for group in cluster.report.groups if cluster.report is not None else ():
            for name, amount in group.free.items():
                place = Line(name, product_of(group) if "/" in name else "", cluster.kind.value)
                places[place] = places.get(place, 0) + amount * group.count
        return self.view.lines.charge(places)

    def take(self, option: "Option") -> None:
        take(self.free(option.cluster.id), option.fitted)
        self._take(option.cluster.id)

    def take_fitted(self, cluster_id: int, fitted: Fitted) -> None:
        """Take a packing from the room of a cluster that it was found in."""
        take(self.free(cluster_id), fitted)
        self._take(cluster_id)

    def is_open(self, cluster_id: int) -> bool:
        """Whether nothing that passes by itself rules the cluster out."""
        return self._passing.get(cluster_id) is None

    def take_many(
        self, cluster_id: int, role: RoleShape, members: int, count: int, lets: Callable[[Fitted], bool]
    ) -> tuple[list[dict[str, int]], Fitted | None]:
        """Place so many more gangs of one role on a cluster, or as many as fit; by gang its members by group, and all together.

        ``lets``: whether nothing else forbids so many of them. They are halved until it does not, so there may be fewer than could be.
        """
        while count:
            gangs, fitted = fit_many(role, members, count, self.free(cluster_id))
            if not gangs:
                break
            if lets(fitted):
                take(self.free(cluster_id), fitted)
                self._take(cluster_id)
                return gangs, fitted
            count = len(gangs) // 2
        return [], None

    def replace(self, cluster_id: int, room: Room) -> None:
        """The room of a cluster after runs were ended there for a job."""
        room.rank(self._now_free.get(cluster_id))
        self._now_free[cluster_id] = room
        self._take(cluster_id)

    def _take(self, cluster_id: int) -> None:
        self._taken.add(cluster_id)
        self._note_change(cluster_id)

    # What rules a cluster out

    def never_fits(self, shape_id: int, cluster: Cluster) -> str | None:
        """Why the smallest size of the gang fits nowhere on the empty cluster; None when it does."""
        shape, size, room = self.view.shapes[shape_id], self.sizes_of(shape_id)[-1], self.empty(cluster)
        alone = only_role(shape, size)
        if alone is not None and has_node(alone, room):
            return None
        outcome = fit(shape, size.members, room)
        return outcome.sentence if isinstance(outcome, Shortfall) else None

    def never(self, shape_id: int, cluster: Cluster) -> Verdict | None:
        """The verdict on a cluster on which the gang could never fit."""
        known = self._never.setdefault(shape_id, {})
        if cluster.id not in known:
            sentence = self.never_fits(shape_id, cluster)
            known[cluster.id] = _verdict(cluster, None if sentence is None else (Check.NEVER_FITS, sentence))
        return known[cluster.id]

    def not_allowed(self, alike: "Alike", cluster: Cluster) -> Verdict | None:
        """What the job itself, or its queue, rules out."""
        wishes = self.view.shapes[alike.shape_id].wishes
        known = self._allowed.setdefault((wishes, alike.allowed_kinds), {})
        if cluster.id not in known:
            candidate = Candidate(alike.allowed_kinds, wishes, cluster, 0.0, ())
            known[cluster.id] = _verdict(cluster, first_failing(STATIC, candidate))
        return known[cluster.id]

    def passing(self, alike: "Alike", cluster: Cluster) -> Verdict | None:
        """What rules a cluster out and passes by itself."""
        verdict = self._passing.get(cluster.id)
        if verdict is None and cluster.id in alike.avoided:
            verdict = _verdict(
                cluster, first_failing(PASSING, Candidate(_NO_KINDS, NO_WISHES, cluster, 1.0, alike.avoided))
            )
        return verdict

    def looked_at(self, alike: "Alike") -> list[tuple[Cluster, Verdict | None]]:
        """The clusters by name for jobs alike, with what rules each out whatever its room is."""
        found = self._looked_at.get(alike)
        if found is None:
            if len(self._looked_at) > _MOST_STANDINGS:
                self._looked_at.clear()
            found = self._looked_at[alike] = [(cluster, self._ruled_out(alike, cluster)) for cluster in self.clusters]
        return found

    def _ruled_out(self, alike: "Alike", cluster: Cluster) -> Verdict | None:
        return self.not_allowed(alike, cluster) or self.never(alike.shape_id, cluster) or self.passing(alike, cluster)

    # Where gangs fit

    def option(
        self, shape_id: int, sizes: "list[Size]", cluster: Cluster, product: Product | None
    ) -> "Option | Shortfall":
        """The largest of these sizes that fits on a cluster now; sizes are named by how many there are."""
        known = self._options.get(cluster.id)
        if known is None:
            known = self._options[cluster.id] = {}
        key = (shape_id, len(sizes), product)
        outcome = known.get(key)
        if outcome is None:
            if len(known) >= _MOST_OPTIONS:
                known.clear()
            outcome = known[key] = self._option(shape_id, sizes, cluster, product)
        return outcome

    def option_among(
        self, shape_id: int, size: "Size", cluster: Cluster, product: Product | None, groups: frozenset[str]
    ) -> "Option | Shortfall":
        """How this size fits into some node groups of a cluster now."""
        free = self.free(cluster.id).groups
        room = Room({name: entries for name, entries in free.items() if name in groups})
        return self._option(shape_id, [size], cluster, product, room)

    def _option(
        self, shape_id: int, sizes: "list[Size]", cluster: Cluster, product: Product | None, among: Room | None = None
    ) -> "Option | Shortfall":
        view, whole = self.view, self.free(cluster.id)
        shape, room = view.shapes[shape_id], whole if among is None else among
        shortfall = Shortfall("")
        for size in sizes:
            outcome = fit(shape, size.members, room, product)
            if isinstance(outcome, Fitted):
                total, parts = score(Fit(cluster, whole.total(), self.empty(cluster).total(), size.needs))
                members = (
                    (group, role, count) for group, roles in outcome.placement.items() for role, count in roles.items()
                )
                charge = view.lines.charge(view.places_at(cluster.id, shape_id, members))
                return Option(cluster, size, outcome, total, parts, charge, product)
            shortfall = outcome
        return shortfall

    def may_fit(self, shape_id: int, size: "Size", cluster: Cluster) -> bool:
        """Whether a member of each role finds a node now: a quick look before the long one."""
        room = self.free(cluster.id)
        for role in self.view.shapes[shape_id].roles:  # noqa: SIM110 - a generator would take twice as long here
            if size.members.get(role.name) and not has_node(role, room):
                return False
        return True

    def ranked(self, alike: "Alike", size: "Size") -> Iterator[Cluster]:
        """The clusters on which jobs alike of this size may fit, the best first. Nothing may change while they are asked for.

        Where nearly every job is of a kind of its own, who asks for the first time never asks again: then only the first ones are
        found, among clusters in the order in which they are full.
        """
        if alike not in self._standings and alike not in self._asked:
            if len(self._asked) >= _MOST_ASKED:
                self._asked.clear()
            self._asked.add(alike)
            return self._first_ranked(alike, size)
        clusters = self.view.clusters
        return (clusters[cluster_id] for _, _, cluster_id in self.standing(alike, size).ranked)

    def note_lacking(self, alike: "Alike", cluster_ids: list[int]) -> None:
        """The gang was tried on clusters, and does not fit there; kept where they are known to be asked for again."""
        standing = self._standings.get(alike)
        if standing is not None and standing.seen == self._changes:
            for cluster_id in cluster_ids:
                standing.note_lack(cluster_id)

    def _first_ranked(self, alike: "Alike", size: "Size") -> Iterator[Cluster]:
        bare, clusters, open_ones, needs = self._bare, self.view.clusters, self._open_to(alike), size.needs
        self._bring_up(bare, self._stand_bare)
        more = headroom(needs, self._least)
        found: list[tuple[float, str, int]] = []
        for entry in bare.ranked:
            # No cluster that was not looked at scores more than this.
            most = entry[0] - more
            while found and found[0][0] < most:
                yield clusters[heappop(found)[2]]
            cluster = open_ones.get(entry[2])
            if cluster is not None:
                heappush(found, (-total_score(cluster.kind, self._measure(cluster), needs), cluster.name, cluster.id))
        while found:
            yield clusters[heappop(found)[2]]

    def _bring_up(self, standing: "Standing", stand: Callable[..., None]) -> None:
        """Take in the clusters that have changed since a standing was last asked for; all of them at first.

        It is doubtful whether there is room where there was none before.
        """
        if standing.is_new:
            for cluster in self.clusters:
                stand(cluster, is_doubtful=True)
            standing.ranked.sort()
            standing.is_new = False
        elif standing.seen != self._changes:
            for cluster_id in reversed(self._changed_at):
                if self._changed_at[cluster_id] <= standing.seen:
                    break
                is_doubtful = cluster_id in standing.lacks
                standing.take_out(cluster_id)
                changed = self.view.clusters.get(cluster_id)
                if changed is not None:
                    stand(changed, is_doubtful=is_doubtful)
        standing.seen = self._changes

    def _stand_bare(self, cluster: Cluster, *, is_doubtful: bool) -> None:
        measured = self._measure(cluster)
        self._bare.put(cluster, total_score(cluster.kind, measured, dict.fromkeys(measured, 0)))

    def standing(self, alike: "Alike", size: "Size") -> "Standing":
        """How the clusters stand for jobs alike of this size, brought up to date."""
        standing = self._standings.get(alike)
        if standing is None:
            if len(self._standings) >= _MOST_STANDINGS:
                self._standings.clear()
            standing = self._standings[alike] = Standing()
        open_ones = self._open_to(alike)

        def stand(cluster: Cluster, *, is_doubtful: bool) -> None:
            if cluster.id not in open_ones:
                return
            if is_doubtful and not self.may_fit(alike.shape_id, size, cluster):
                standing.lacks.add(cluster.id)
            else:
                standing.put(cluster, total_score(cluster.kind, self._measure(cluster), size.needs))

        self._bring_up(standing, stand)
        return standing

    def _measure(self, cluster: Cluster) -> Measure:
        found = self._measures.get(cluster.id)
        if found is None:
            found = measure(self.free(cluster.id).total(), self.empty(cluster).total())
            self._measures[cluster.id] = found
        return found

    def _open_to(self, alike: "Alike") -> dict[int, Cluster]:
        """The clusters that are not ruled out for jobs alike, whatever their room is, except that the gang may never fit there."""
        key = (self.view.shapes[alike.shape_id].wishes, alike.allowed_kinds, alike.avoided)
        found = self._open.get(key)
        if found is None:
            found = self._open[key] = {
                cluster.id: cluster
                for cluster in self.clusters
                if self.not_allowed(alike, cluster) is None and self.passing(alike, cluster) is None
            }
        return found

    def reason(self, alike: "Alike", verdicts: list[Verdict], explain: "Callable[[list[Verdict]], Reason]") -> Reason:
        """Why jobs alike are blocked; the same object as before where nothing has changed."""
        standing = self._standings.get(alike)
        if standing is None:
            return explain(verdicts)
        known = standing.reason
        if known is None or known[0] != verdicts:
            known = standing.reason = verdicts, explain(verdicts)
        return known[1]

    def verdict(self, alike: "Alike", size: "Size", cluster: Cluster) -> Verdict:
        """What a cluster lacks now on which jobs alike of this size do not fit."""
        standing = self._standings[alike]
        at = self._changed_at.get(cluster.id, 0)
        known = standing.told.get(cluster.id)
        if known is not None and known[0] == at:
            return known[1]
        alone = only_role(self.view.shapes[alike.shape_id], size)
        outcome: Option | Shortfall
        if alone is not None:
            outcome = lack_of_one(alone, self.free(cluster.id))
        else:
            outcome = self.option(alike.shape_id, [size], cluster, None)
        verdict = self._lacking(cluster, outcome.sentence if isinstance(outcome, Shortfall) else "")
        standing.told[cluster.id] = at, verdict
        return verdict

    def _lacking(self, cluster: Cluster, sentence: str) -> Verdict:
        """The verdict on a cluster without room: one object for the same words."""
        said = self._said.setdefault(cluster.id, {})
        found = said.get(sentence)
        if found is None:
            if len(said) >= _MOST_OPTIONS:
                said.clear()
            found = said[sentence] = Verdict(cluster=cluster.name, check=Check.NO_ROOM, sentence=sentence)
        return found


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
    lacks: set[int] = field(default_factory=set)
    """Clusters without room."""
    told: dict[int, tuple[int, Verdict]] = field(default_factory=dict)
    """By cluster without room: what it lacked after which change."""
    reason: tuple[list[Verdict], Reason] | None = None
    """Why these jobs were blocked when they last were."""
    seen: int = 0
    """The number of the last change of any room that it has taken in."""
    is_new: bool = True

    def put(self, cluster: Cluster, total: float) -> None:
        """A cluster has this score now, if the gang fits there."""
        entry = self.rank_of[cluster.id] = (-total, cluster.name, cluster.id)
        if self.is_new:
            self.ranked.append(entry)
        else:
            insort(self.ranked, entry)

    def note_lack(self, cluster_id: int) -> None:
        """The gang does not fit there now."""
        self.take_out(cluster_id)
        self.lacks.add(cluster_id)

    def take_out(self, cluster_id: int) -> None:
        """Nothing is known of a cluster any more."""
        self.lacks.discard(cluster_id)
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
    entitled: tuple[int, ...] = ()
    """Advance reservations that are for it."""


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
