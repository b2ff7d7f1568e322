"""What is known of the clusters for jobs alike, kept from one look to the next: where they may start, and what lacks elsewhere."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from trainmaster.protocol.quantities import Resources
from trainmaster.protocol.reasons import Check, Verdict
from trainmaster_dispatcher.domain.shapes import RoleShape
from trainmaster_dispatcher.domain.weights import Weights
from trainmaster_dispatcher.scheduling.packing.gang_packing import Shortfall, Size, short_of, spread_role
from trainmaster_dispatcher.scheduling.selection.cluster_index import (
    MOST_OPTIONS,
    MOST_SHAPES,
    ClusterIndex,
    SchedulingKey,
)
from trainmaster_dispatcher.scheduling.selection.scores import headroom, scorer
from trainmaster_dispatcher.scheduling.selection.unfeasible_keys import CachedRefusal, RefusalCache
from trainmaster_dispatcher.scheduling.state.state import Cluster

_MOST_ASKED = 5000


@dataclass(slots=True)
class ClusterRanking:
    """How the clusters stand for jobs alike, kept up to date as rooms change.

    What a cluster would score is known without a fit, so they are ranked by that, and only the best ones are tried.
    """

    ranked: list[tuple[float, str, int]] = field(default_factory=list)
    """Minus the score, name and id of the clusters that are not known to lack room, the best first."""
    rank_of: dict[int, tuple[float, str, int]] = field(default_factory=dict)
    lacks: dict[int, Resources | None] = field(default_factory=dict)
    """Clusters without room. Where the verdict goes by what one node has free at most, that: the verdict holds as long as it stays
    so, whatever else changes there."""
    seen: int = 0
    """The number of the last change of any room that it has taken in."""
    is_new: bool = True
    alone: RoleShape | None = None
    """The only role of a gang that may be spread over all nodes."""
    verdicts: list[Verdict | None] = field(default_factory=list)
    """By the place of a cluster in the order of their names: what it lacked when that was last told."""
    untold: list[int] = field(default_factory=list)
    """Clusters without a verdict, as they had room when verdicts were last told."""
    told_at: int = 0
    """The number of the last change that the verdicts have taken in."""
    told_of: int = 0
    """The number of the order of clusters that the verdicts are in."""
    told: CachedRefusal | None = None
    """What was last told of all clusters."""

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
        self.lacks[cluster_id] = None

    def take_out(self, cluster_id: int) -> None:
        """Nothing is known of a cluster any more."""
        self.lacks.pop(cluster_id, None)
        old = self.rank_of.pop(cluster_id, None)
        if old is not None:
            del self.ranked[bisect_left(self.ranked, old)]


class ClusterRankings:
    """How the clusters stand for all who have asked, kept as long as the rooms of the clusters are."""

    def __init__(self, rooms: ClusterIndex) -> None:
        self.rooms = rooms
        self._standings: dict[SchedulingKey, ClusterRanking] = {}
        self._bare: dict[Weights, ClusterRanking] = {}
        """By weights: all clusters by what they score for a job that needs next to nothing, of everything, and costs nothing."""
        self._asked: set[SchedulingKey] = set()
        """For whom the clusters were ranked once; who asks again is given a standing."""
        self._said: dict[int, dict[str, Verdict]] = {}
        """By cluster and sentence: verdicts on room."""
        self.shortages = RefusalCache(rooms, self._lacking)

    # Where jobs alike may start

    def ranked(self, alike: SchedulingKey, size: Size, lacking: list[int]) -> Iterator[Cluster]:
        """The clusters on which jobs alike of this size may fit, the best first; ``lacking`` is told where no member finds a node.

        Nothing may change while they are asked for. Where nearly every job is of a kind of its own, who asks for the first time
        never asks again: then only the first ones are found, among clusters in the order in which they are full.
        """
        if alike not in self._standings and alike not in self._asked:
            if len(self._asked) >= _MOST_ASKED:
                self._asked.clear()
            self._asked.add(alike)
            yield from self._first_ranked(alike, size, lacking)
            return
        clusters = self.rooms.view.clusters
        for _, _, cluster_id in self._standing(alike, size).ranked:
            cluster = clusters[cluster_id]
            if self.rooms.may_fit(alike.shape_id, size, cluster):
                yield cluster
            else:
                lacking.append(cluster_id)

    def note_lacking(self, alike: SchedulingKey, cluster_ids: list[int]) -> None:
        """The gang was tried on clusters, and does not fit there; kept where they are known to be asked for again."""
        standing = self._standings.get(alike)
        if standing is not None and standing.seen == self.rooms.changes:
            for cluster_id in cluster_ids:
                standing.note_lack(cluster_id)

    def _first_ranked(self, alike: SchedulingKey, size: Size, lacking: list[int]) -> Iterator[Cluster]:
        clusters, open_ones, needs, weights = (
            self.rooms.view.clusters,
            self.rooms.open_to(alike),
            size.needs,
            alike.weights,
        )
        bare = self._bare_by(weights)
        more = headroom(needs, self.rooms.least, weights)
        may_fit, totals = self.rooms.may_fit, self._totals(alike, size)
        found: list[tuple[float, str, int]] = []

        def best(most: float) -> Iterator[Cluster]:
            """Of those found, the clusters that score more than this."""
            while found and found[0][0] < most:
                cluster = clusters[heappop(found)[2]]
                if may_fit(alike.shape_id, size, cluster):
                    yield cluster
                else:
                    lacking.append(cluster.id)

        for entry in bare.ranked:
            # No cluster that was not looked at scores more than this.
            most = entry[0] - more
            if found and found[0][0] < most:
                yield from best(most)
            cluster = open_ones.get(entry[2])
            if cluster is not None:
                heappush(found, (-totals(cluster), cluster.name, cluster.id))
        yield from best(inf)

    def _bring_up(self, standing: ClusterRanking, stand: Callable[..., None]) -> None:
        """Take in the clusters that have changed since a standing was last asked for; all of them at first.

        It is doubtful whether there is room where there was none before.
        """
        if standing.is_new:
            for cluster in self.rooms.clusters:
                stand(cluster, is_doubtful=True)
            standing.ranked.sort()
            standing.is_new = False
        elif standing.seen != self.rooms.changes:
            lacks, alone = standing.lacks, standing.alone
            for cluster_id in self.rooms.changed_since(standing.seen):
                is_doubtful = cluster_id in lacks
                changed = self.rooms.view.clusters.get(cluster_id)
                if is_doubtful and alone is not None and changed is not None:
                    most = lacks[cluster_id]
                    is_same = self.rooms.reported_at[cluster_id] <= standing.seen
                    if most is not None and is_same and self.rooms.most_of(alone, cluster_id) == most:
                        continue
                standing.take_out(cluster_id)
                if changed is not None:
                    stand(changed, is_doubtful=is_doubtful)
        standing.seen = self.rooms.changes

    def _totals(self, alike: SchedulingKey, size: Size) -> Callable[[Cluster], float]:
        """What gives what a cluster scores if the gang fits there."""
        rooms, shape_id, weights, needs = self.rooms, alike.shape_id, alike.weights, size.needs
        measure, total, is_plain = rooms.measure, scorer(weights), rooms.scores_plainly(shape_id)
        is_choosy = bool(weights.sparing) and rooms.is_choosy(shape_id)

        def totals(cluster: Cluster) -> float:
            common = rooms.common(shape_id, rooms.free(cluster.id)) if is_choosy else None
            if is_plain:
                cost = 0.0 if cluster.tariff.is_free else rooms.cost(shape_id, size, cluster)
                return total(cluster.kind, measure(cluster), needs, cost, None, common)
            cost, fixed = rooms.cost(shape_id, size, cluster), rooms.fixed(shape_id, cluster, weights)
            return total(cluster.kind, measure(cluster), needs, cost, fixed, common)

        return totals

    def _bare_by(self, weights: Weights) -> ClusterRanking:
        bare = self._bare.get(weights)
        if bare is None:
            bare = self._bare[weights] = ClusterRanking()
        standing, total = bare, scorer(weights)

        def stand(cluster: Cluster, *, is_doubtful: bool) -> None:
            measured = self.rooms.measure(cluster)
            score = total(cluster.kind, measured, dict.fromkeys(measured, 0), 0.0, None, None)
            standing.put(cluster, score)

        self._bring_up(bare, stand)
        return bare

    def stand(self, alike: SchedulingKey, size: Size, lacking: list[int]) -> None:
        """Bring up to date how the clusters stand for jobs alike of this size, which was tried on clusters that have no room."""
        standing = self._standing(alike, size, lacking)
        for cluster_id in lacking:
            if cluster_id in standing.rank_of:
                standing.note_lack(cluster_id)

    def _standing(self, alike: SchedulingKey, size: Size, lacking: list[int] | None = None) -> ClusterRanking:
        """How the clusters stand for jobs alike of this size, brought up to date. ``lacking``: clusters known to have no room."""
        standing = self._standings.get(alike)
        if standing is None:
            if len(self._standings) >= MOST_SHAPES:
                self._standings.clear()
            standing = self._standings[alike] = ClusterRanking(
                alone=spread_role(self.rooms.view.shapes[alike.shape_id], size)
            )
        known, totals = set(lacking or ()), self._totals(alike, size)
        open_ones = self.rooms.open_to(alike)

        def stand(cluster: Cluster, *, is_doubtful: bool) -> None:
            if cluster.id not in open_ones:
                return
            if cluster.id in known or (is_doubtful and not self.rooms.may_fit(alike.shape_id, size, cluster)):
                standing.lacks[cluster.id] = None
            else:
                standing.put(cluster, totals(cluster))

        self._bring_up(standing, stand)
        return standing

    # Why they may not

    def blocked(self, alike: SchedulingKey, size: Size, closed: Mapping[int, Verdict]) -> CachedRefusal:
        """Why jobs alike of this size start on no cluster; the same object as before where nothing has changed.

        ``closed``: clusters that have room and are kept for others. The standing must be up to date.
        """
        standing = self._standings[alike]
        if standing.told_of != self.rooms.orders:
            standing.verdicts, standing.told_of = [None] * len(self.rooms.clusters), self.rooms.orders
            standing.told = None
            ask = list(self.rooms.places)
        else:
            changed = self.rooms.changed_since(standing.told_at)
            ask = [one for one in changed if one in self.rooms.places and not self._lacks_as_told(standing, one)]
            ask += standing.untold
        standing.told_at = self.rooms.changes
        self._tell(alike, size, standing, ask, closed)
        if not closed:
            self.shortages.note(alike, size)
        verdicts = [
            closed[cluster.id] if verdict is None else verdict
            for cluster, verdict in zip(self.rooms.clusters, standing.verdicts, strict=True)
        ]
        if standing.told is None or standing.told.verdicts != verdicts:
            full = [
                cluster.id
                for cluster, verdict in zip(self.rooms.clusters, verdicts, strict=True)
                if verdict.check is Check.NO_ROOM
            ]
            standing.told = CachedRefusal(verdicts, full)
        return standing.told

    def _lacks_as_told(self, standing: ClusterRanking, cluster_id: int) -> bool:
        return standing.lacks.get(cluster_id) is not None and self.rooms.reported_at[cluster_id] <= standing.told_at

    def _tell(
        self,
        alike: SchedulingKey,
        size: Size,
        standing: ClusterRanking,
        cluster_ids: list[int],
        closed: Mapping[int, Verdict],
    ) -> None:
        """Bring the verdicts on these clusters up to date."""
        untold = []
        lack_on = self._lack_of(alike, size, standing.alone, standing.lacks)
        for cluster_id in cluster_ids:
            place = self.rooms.places[cluster_id]
            verdict = None
            if cluster_id in closed:
                untold.append(cluster_id)
            else:
                cluster = self.rooms.clusters[place]
                verdict = self.rooms.ruled_out(alike, cluster) or lack_on(cluster)
            standing.verdicts[place] = verdict
        standing.untold = untold

    def _lack_of(
        self, alike: SchedulingKey, size: Size, alone: RoleShape | None, noted: dict[int, Resources | None]
    ) -> Callable[[Cluster], Verdict]:
        """What tells what clusters lack on which jobs alike of this size do not fit; what that hangs on is put down in ``noted``."""

        def lack_on(cluster: Cluster) -> Verdict:
            if alone is not None:
                most = self.rooms.most_of(alone, cluster.id)
                lack = short_of(alone, most)
                if lack is not None and most:
                    if cluster.id in noted:
                        noted[cluster.id] = most
                    return self._lacking(cluster, lack)
            outcome = self.rooms.option(alike.shape_id, [size], cluster, None)
            return self._lacking(cluster, outcome.sentence if isinstance(outcome, Shortfall) else "")

        return lack_on

    def first_lacking(self, alike: SchedulingKey, size: Size, most: int) -> list[Verdict]:
        """What the first clusters without room lack, by their names; those on which the gang never fits are passed over."""
        found: list[Verdict] = []
        standing = self._standings[alike]
        # The verdicts that are kept do not know of these.
        lacks, lack_on = standing.lacks, self._lack_of(alike, size, standing.alone, {})
        for cluster in self.rooms.clusters:
            if cluster.id in lacks and self.rooms.never(alike.shape_id, cluster) is None:
                found.append(lack_on(cluster))
                if len(found) == most:
                    break
        return found

    def _lacking(self, cluster: Cluster, sentence: str) -> Verdict:
        """The verdict on a cluster without room: one object for the same words."""
        said = self._said.get(cluster.id)
        if said is None:
            said = self._said[cluster.id] = {}
        found = said.get(sentence)
        if found is None:
            if len(said) >= MOST_OPTIONS:
                said.clear()
            found = said[sentence] = Verdict(cluster=cluster.name, check=Check.NO_ROOM, sentence=sentence)
        return found
