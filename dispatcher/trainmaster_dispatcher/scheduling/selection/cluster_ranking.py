"""Rankings of the clusters for equivalent jobs, kept from one cycle to the next: where they may start, what lacks elsewhere."""

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
    """The clusters by score for equivalent jobs, brought up to date where free capacity has changed.

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
    """How the clusters stand for all who have asked, kept as long as the index of the clusters are."""

    def __init__(self, index: ClusterIndex) -> None:
        self.index = index
        self._rankings: dict[SchedulingKey, ClusterRanking] = {}
        self._bare: dict[Weights, ClusterRanking] = {}
        """By weights: all clusters by what they score for a job that needs next to nothing, of everything, and costs nothing."""
        self._asked: set[SchedulingKey] = set()
        """For whom the clusters were ranked once; who asks again is given a standing."""
        self._said: dict[int, dict[str, Verdict]] = {}
        """By cluster and sentence: verdicts on room."""
        self.shortages = RefusalCache(index, self._lacking)

    # Where equivalent jobs may start

    def ranked(self, scheduling_key: SchedulingKey, size: Size, lacking: list[int]) -> Iterator[Cluster]:
        """Return the clusters on which equivalent jobs of this size may fit, best first; append to ``lacking`` those without a node.

        Nothing may change while they are asked for. Where nearly every job is of a kind of its own, who asks for the first time
        never asks again: then only the first ones are found, among clusters in the order in which they are full.
        """
        if scheduling_key not in self._rankings and scheduling_key not in self._asked:
            if len(self._asked) >= _MOST_ASKED:
                self._asked.clear()
            self._asked.add(scheduling_key)
            yield from self._first_ranked(scheduling_key, size, lacking)
            return
        clusters = self.index.state.clusters
        for _, _, cluster_id in self._ranking(scheduling_key, size).ranked:
            cluster = clusters[cluster_id]
            if self.index.may_fit(scheduling_key.shape_id, size, cluster):
                yield cluster
            else:
                lacking.append(cluster_id)

    def note_lacking(self, scheduling_key: SchedulingKey, cluster_ids: list[int]) -> None:
        """The gang was tried on clusters, and does not fit there; kept where they are known to be asked for again."""
        ranking = self._rankings.get(scheduling_key)
        if ranking is not None and ranking.seen == self.index.changes:
            for cluster_id in cluster_ids:
                ranking.note_lack(cluster_id)

    def _first_ranked(self, scheduling_key: SchedulingKey, size: Size, lacking: list[int]) -> Iterator[Cluster]:
        clusters, open_ones, needs, weights = (
            self.index.state.clusters,
            self.index.open_to(scheduling_key),
            size.needs,
            scheduling_key.weights,
        )
        bare = self._bare_by(weights)
        more = headroom(needs, self.index.least, weights)
        may_fit, totals = self.index.may_fit, self._totals(scheduling_key, size)
        found: list[tuple[float, str, int]] = []

        def best(most: float) -> Iterator[Cluster]:
            """Of those found, the clusters that score more than this."""
            while found and found[0][0] < most:
                cluster = clusters[heappop(found)[2]]
                if may_fit(scheduling_key.shape_id, size, cluster):
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

    def _bring_up(self, ranking: ClusterRanking, update: Callable[..., None]) -> None:
        """Take in the clusters that have changed since a standing was last asked for; all of them at first.

        It is doubtful whether there is room where there was none before.
        """
        if ranking.is_new:
            for cluster in self.index.clusters:
                update(cluster, is_doubtful=True)
            ranking.ranked.sort()
            ranking.is_new = False
        elif ranking.seen != self.index.changes:
            lacks, alone = ranking.lacks, ranking.alone
            for cluster_id in self.index.changed_since(ranking.seen):
                is_doubtful = cluster_id in lacks
                changed = self.index.state.clusters.get(cluster_id)
                if is_doubtful and alone is not None and changed is not None:
                    most = lacks[cluster_id]
                    is_same = self.index.reported_at[cluster_id] <= ranking.seen
                    if most is not None and is_same and self.index.most_of(alone, cluster_id) == most:
                        continue
                ranking.take_out(cluster_id)
                if changed is not None:
                    update(changed, is_doubtful=is_doubtful)
        ranking.seen = self.index.changes

    def _totals(self, scheduling_key: SchedulingKey, size: Size) -> Callable[[Cluster], float]:
        """What gives what a cluster scores if the gang fits there."""
        index, shape_id, weights, needs = self.index, scheduling_key.shape_id, scheduling_key.weights, size.needs
        measure, total, is_plain = index.measure, scorer(weights), index.scores_plainly(shape_id)
        is_choosy = bool(weights.sparing) and index.is_choosy(shape_id)

        def totals(cluster: Cluster) -> float:
            common = index.common(shape_id, index.free(cluster.id)) if is_choosy else None
            if is_plain:
                cost = 0.0 if cluster.tariff.is_free else index.cost(shape_id, size, cluster)
                return total(cluster.kind, measure(cluster), needs, cost, None, common)
            cost, fixed = index.cost(shape_id, size, cluster), index.fixed(shape_id, cluster, weights)
            return total(cluster.kind, measure(cluster), needs, cost, fixed, common)

        return totals

    def _bare_by(self, weights: Weights) -> ClusterRanking:
        bare = self._bare.get(weights)
        if bare is None:
            bare = self._bare[weights] = ClusterRanking()
        ranking, total = bare, scorer(weights)

        def update(cluster: Cluster, *, is_doubtful: bool) -> None:
            measured = self.index.measure(cluster)
            score = total(cluster.kind, measured, dict.fromkeys(measured, 0), 0.0, None, None)
            ranking.put(cluster, score)

        self._bring_up(bare, update)
        return bare

    def update(self, scheduling_key: SchedulingKey, size: Size, lacking: list[int]) -> None:
        """Bring up to date how the clusters stand for equivalent jobs of this size, which was tried on clusters that have no room."""
        ranking = self._ranking(scheduling_key, size, lacking)
        for cluster_id in lacking:
            if cluster_id in ranking.rank_of:
                ranking.note_lack(cluster_id)

    def _ranking(self, scheduling_key: SchedulingKey, size: Size, lacking: list[int] | None = None) -> ClusterRanking:
        """How the clusters stand for equivalent jobs of this size, brought up to date. ``lacking``: clusters known to have no room."""
        ranking = self._rankings.get(scheduling_key)
        if ranking is None:
            if len(self._rankings) >= MOST_SHAPES:
                self._rankings.clear()
            ranking = self._rankings[scheduling_key] = ClusterRanking(
                alone=spread_role(self.index.state.shapes[scheduling_key.shape_id], size)
            )
        known, totals = set(lacking or ()), self._totals(scheduling_key, size)
        open_ones = self.index.open_to(scheduling_key)

        def update(cluster: Cluster, *, is_doubtful: bool) -> None:
            if cluster.id not in open_ones:
                return
            if cluster.id in known or (is_doubtful and not self.index.may_fit(scheduling_key.shape_id, size, cluster)):
                ranking.lacks[cluster.id] = None
            else:
                ranking.put(cluster, totals(cluster))

        self._bring_up(ranking, update)
        return ranking

    # Why they may not

    def blocked(self, scheduling_key: SchedulingKey, size: Size, closed: Mapping[int, Verdict]) -> CachedRefusal:
        """Why equivalent jobs of this size start on no cluster; the same object as before where nothing has changed.

        ``closed``: clusters that have room and are kept for others. The standing must be up to date.
        """
        ranking = self._rankings[scheduling_key]
        if ranking.told_of != self.index.orders:
            ranking.verdicts, ranking.told_of = [None] * len(self.index.clusters), self.index.orders
            ranking.told = None
            ask = list(self.index.places)
        else:
            changed = self.index.changed_since(ranking.told_at)
            ask = [one for one in changed if one in self.index.places and not self._lacks_as_told(ranking, one)]
            ask += ranking.untold
        ranking.told_at = self.index.changes
        self._tell(scheduling_key, size, ranking, ask, closed)
        if not closed:
            self.shortages.note(scheduling_key, size)
        verdicts = [
            closed[cluster.id] if verdict is None else verdict
            for cluster, verdict in zip(self.index.clusters, ranking.verdicts, strict=True)
        ]
        if ranking.told is None or ranking.told.verdicts != verdicts:
            full = [
                cluster.id
                for cluster, verdict in zip(self.index.clusters, verdicts, strict=True)
                if verdict.check is Check.NO_ROOM
            ]
            ranking.told = CachedRefusal(verdicts, full)
        return ranking.told

    def _lacks_as_told(self, ranking: ClusterRanking, cluster_id: int) -> bool:
        return ranking.lacks.get(cluster_id) is not None and self.index.reported_at[cluster_id] <= ranking.told_at

    def _tell(
        self,
        scheduling_key: SchedulingKey,
        size: Size,
        ranking: ClusterRanking,
        cluster_ids: list[int],
        closed: Mapping[int, Verdict],
    ) -> None:
        """Bring the verdicts on these clusters up to date."""
        untold = []
        lack_on = self._lack_of(scheduling_key, size, ranking.alone, ranking.lacks)
        for cluster_id in cluster_ids:
            place = self.index.places[cluster_id]
            verdict = None
            if cluster_id in closed:
                untold.append(cluster_id)
            else:
                cluster = self.index.clusters[place]
                verdict = self.index.ruled_out(scheduling_key, cluster) or lack_on(cluster)
            ranking.verdicts[place] = verdict
        ranking.untold = untold

    def _lack_of(
        self, scheduling_key: SchedulingKey, size: Size, alone: RoleShape | None, noted: dict[int, Resources | None]
    ) -> Callable[[Cluster], Verdict]:
        """Return what tells what a cluster lacks for equivalent jobs of this size; what that depends on is entered in ``noted``."""

        def lack_on(cluster: Cluster) -> Verdict:
            if alone is not None:
                most = self.index.most_of(alone, cluster.id)
                lack = short_of(alone, most)
                if lack is not None and most:
                    if cluster.id in noted:
                        noted[cluster.id] = most
                    return self._lacking(cluster, lack)
            outcome = self.index.option(scheduling_key.shape_id, [size], cluster, None)
            return self._lacking(cluster, outcome.sentence if isinstance(outcome, Shortfall) else "")

        return lack_on

    def first_lacking(self, scheduling_key: SchedulingKey, size: Size, most: int) -> list[Verdict]:
        """What the first clusters without room lack, by their names; those on which the gang never fits are passed over."""
        found: list[Verdict] = []
        ranking = self._rankings[scheduling_key]
        # The verdicts that are kept do not know of these.
        lacks, lack_on = ranking.lacks, self._lack_of(scheduling_key, size, ranking.alone, {})
        for cluster in self.index.clusters:
            if cluster.id in lacks and self.index.never(scheduling_key.shape_id, cluster) is None:
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
