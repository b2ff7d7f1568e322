"""Rankings of the clusters for equivalent jobs, cached from one cycle to the next: where they may start, and what other
clusters lack."""

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
from trainmaster_dispatcher.scheduling.selection.scores import counts_devices, headroom, scorer
from trainmaster_dispatcher.scheduling.selection.unfeasible_keys import CachedRefusal, RefusalCache
from trainmaster_dispatcher.scheduling.state.declared_objects import Cluster

_MOST_RANKED_ONCE = 5000


@dataclass(slots=True)
class ClusterRanking:
    """The clusters by score for equivalent jobs, updated where free capacity has changed.

    The score of a cluster is known without a fit, so clusters are ranked by it, and only the best ones are tried.
    """

    ranked: list[tuple[float, str, int]] = field(default_factory=list)
    """Minus the score, name and id of the clusters that are not known to lack capacity, the best first."""
    rank_of: dict[int, tuple[float, str, int]] = field(default_factory=dict)
    lacks: dict[int, Resources | None] = field(default_factory=dict)
    """Clusters without enough free capacity. If the verdict depends only on the largest free amounts on one node, those
    amounts: the verdict is valid as long as they stay the same, whatever else changes there."""
    changes_seen: int = 0
    """The number of the last change that the ranking includes."""
    is_new: bool = True
    alone: RoleShape | None = None
    """The only role of a gang that may be spread over all nodes."""
    verdicts: list[Verdict | None] = field(default_factory=list)
    """By the index of a cluster in the order of names: what it lacked at the last update of the verdicts."""
    without_verdict: list[int] = field(default_factory=list)
    """Clusters without a verdict, because they had enough free capacity at the last update of the verdicts."""
    verdicts_at: int = 0
    """The number of the last change that the verdicts include."""
    verdicts_order: int = 0
    """The number of the order of clusters that the verdicts are in."""
    refusal: CachedRefusal | None = None
    """The last refusal by all clusters."""

    def put(self, cluster: Cluster, total: float) -> None:
        """Enter a cluster with its score, which it has if the gang fits there."""
        entry = self.rank_of[cluster.id] = (-total, cluster.name, cluster.id)
        if self.is_new:
            self.ranked.append(entry)
        else:
            insort(self.ranked, entry)

    def note_lack(self, cluster_id: int) -> None:
        """Record that the gang does not fit there now."""
        self.take_out(cluster_id)
        self.lacks[cluster_id] = None

    def take_out(self, cluster_id: int) -> None:
        """Remove a cluster from the ranking."""
        self.lacks.pop(cluster_id, None)
        old = self.rank_of.pop(cluster_id, None)
        if old is not None:
            del self.ranked[bisect_left(self.ranked, old)]


class ClusterRankings:
    """Cluster rankings by scheduling key, built lazily and cached as long as the cluster index."""

    def __init__(self, index: ClusterIndex) -> None:
        self.index = index
        self._rankings: dict[SchedulingKey, ClusterRanking] = {}
        self._bare: dict[Weights, ClusterRanking] = {}
        """By weights: all clusters by their score for a job that needs next to nothing of every resource and costs nothing."""
        self._ranked_once: set[SchedulingKey] = set()
        """Keys for which the clusters were ranked once; at the second request a ranking is built."""
        self._said: dict[int, dict[str, Verdict]] = {}
        """By cluster and sentence: verdicts on free capacity."""
        self.refusals = RefusalCache(index, self._lacking)

    # Where equivalent jobs may start

    def ranked(self, scheduling_key: SchedulingKey, size: Size, lacking: list[int]) -> Iterator[Cluster]:
        """Yield the clusters on which equivalent jobs of this size may fit, best first; append to ``lacking`` those without a node.

        Nothing may change during the iteration. Where nearly every job has a key of its own, a key that is requested
        for the first time is never requested again: then only the first clusters are searched, in the order of their
        bare scores.
        """
        if scheduling_key not in self._rankings and scheduling_key not in self._ranked_once:
            if len(self._ranked_once) >= _MOST_RANKED_ONCE:
                self._ranked_once.clear()
            self._ranked_once.add(scheduling_key)
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
        """Record that the gang was tried on these clusters and does not fit there, if a ranking is cached for the key."""
        ranking = self._rankings.get(scheduling_key)
        if ranking is not None and ranking.changes_seen == self.index.changes:
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
            """Yield the clusters in ``found`` that score more than ``most``."""
            while found and found[0][0] < most:
                cluster = clusters[heappop(found)[2]]
                if may_fit(scheduling_key.shape_id, size, cluster):
                    yield cluster
                else:
                    lacking.append(cluster.id)

        for entry in bare.ranked:
            # No cluster that was not examined yet scores more than this.
            most = entry[0] - more
            if found and found[0][0] < most:
                yield from best(most)
            cluster = open_ones.get(entry[2])
            if cluster is not None:
                heappush(found, (-totals(cluster), cluster.name, cluster.id))
        yield from best(inf)

    def _bring_up(self, ranking: ClusterRanking, update: Callable[..., None]) -> None:
        """Update a ranking with the clusters that have changed since its last use; with all clusters the first time.

        A cluster without enough free capacity before is checked again.
        """
        if ranking.is_new:
            for cluster in self.index.clusters:
                update(cluster, is_doubtful=True)
            ranking.ranked.sort()
            ranking.is_new = False
        elif ranking.changes_seen != self.index.changes:
            lacks, alone = ranking.lacks, ranking.alone
            for cluster_id in self.index.changed_since(ranking.changes_seen):
                is_doubtful = cluster_id in lacks
                changed = self.index.state.clusters.get(cluster_id)
                if is_doubtful and alone is not None and changed is not None:
                    most = lacks[cluster_id]
                    is_same = self.index.reported_at[cluster_id] <= ranking.changes_seen
                    if most is not None and is_same and self.index.most_of(alone, cluster_id) == most:
                        continue
                ranking.take_out(cluster_id)
                if changed is not None:
                    update(changed, is_doubtful=is_doubtful)
        ranking.changes_seen = self.index.changes

    def _totals(self, scheduling_key: SchedulingKey, size: Size) -> Callable[[Cluster], float]:
        """Return a function that gives the score of a cluster if the gang fits there."""
        index, shape_id, weights, needs = self.index, scheduling_key.shape_id, scheduling_key.weights, size.needs
        usage, total = index.usage, scorer(weights)
        predecessors = scheduling_key.predecessors
        reads_data, varies = bool(index.state.shapes[shape_id].datasets), index.varies(shape_id, weights, predecessors)
        is_choosy = counts_devices(weights) and index.is_choosy(shape_id)

        def totals(cluster: Cluster) -> float:
            cost = 0.0 if cluster.tariff.is_free and not reads_data else index.cost(shape_id, size, cluster)
            fixed = index.fixed(shape_id, cluster, weights, predecessors) if varies else None
            common = index.common(shape_id, index.free(cluster.id)) if is_choosy else None
            return total(cluster.kind, usage(cluster), needs, cost, fixed, common)

        return totals

    def _bare_by(self, weights: Weights) -> ClusterRanking:
        bare = self._bare.get(weights)
        if bare is None:
            bare = self._bare[weights] = ClusterRanking()
        ranking, total = bare, scorer(weights)

        def update(cluster: Cluster, *, is_doubtful: bool) -> None:
            usage = self.index.usage(cluster)
            score = total(cluster.kind, usage, dict.fromkeys(usage, 0), 0.0, None, None)
            ranking.put(cluster, score)

        self._bring_up(bare, update)
        return bare

    def update(self, scheduling_key: SchedulingKey, size: Size, lacking: list[int]) -> None:
        """Update the ranking for equivalent jobs of this size, which was tried on the clusters ``lacking`` and did not fit."""
        ranking = self._ranking(scheduling_key, size, lacking)
        for cluster_id in lacking:
            if cluster_id in ranking.rank_of:
                ranking.note_lack(cluster_id)

    def _ranking(self, scheduling_key: SchedulingKey, size: Size, lacking: list[int] | None = None) -> ClusterRanking:
        """Return the updated ranking for equivalent jobs of this size. ``lacking``: clusters known not to have enough
        free capacity."""
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
        """Return why equivalent jobs of this size start on no cluster; the same object as before if nothing has changed.

        ``closed``: clusters that have enough free capacity but are kept for others. The ranking must be up to date.
        """
        ranking = self._rankings[scheduling_key]
        if ranking.verdicts_order != self.index.orders:
            ranking.verdicts, ranking.verdicts_order = [None] * len(self.index.clusters), self.index.orders
            ranking.refusal = None
            ask = list(self.index.places)
        else:
            changed = self.index.changed_since(ranking.verdicts_at)
            ask = [one for one in changed if one in self.index.places and not self._is_verdict_valid(ranking, one)]
            ask += ranking.without_verdict
        ranking.verdicts_at = self.index.changes
        self._update_verdicts(scheduling_key, size, ranking, ask, closed)
        if not closed:
            self.refusals.note(scheduling_key, size)
        verdicts = [
            closed[cluster.id] if verdict is None else verdict
            for cluster, verdict in zip(self.index.clusters, ranking.verdicts, strict=True)
        ]
        if ranking.refusal is None or ranking.refusal.verdicts != verdicts:
            full = [
                cluster.id
                for cluster, verdict in zip(self.index.clusters, verdicts, strict=True)
                if verdict.check is Check.NO_ROOM
            ]
            ranking.refusal = CachedRefusal(verdicts, full)
        return ranking.refusal

    def _is_verdict_valid(self, ranking: ClusterRanking, cluster_id: int) -> bool:
        return ranking.lacks.get(cluster_id) is not None and self.index.reported_at[cluster_id] <= ranking.verdicts_at

    def _update_verdicts(
        self,
        scheduling_key: SchedulingKey,
        size: Size,
        ranking: ClusterRanking,
        cluster_ids: list[int],
        closed: Mapping[int, Verdict],
    ) -> None:
        """Update the verdicts on these clusters."""
        without_verdict = []
        lack_on = self._lack_of(scheduling_key, size, ranking.alone, ranking.lacks)
        for cluster_id in cluster_ids:
            place = self.index.places[cluster_id]
            verdict = None
            if cluster_id in closed:
                without_verdict.append(cluster_id)
            else:
                cluster = self.index.clusters[place]
                verdict = self.index.ruled_out(scheduling_key, cluster) or lack_on(cluster)
            ranking.verdicts[place] = verdict
        ranking.without_verdict = without_verdict

    def _lack_of(
        self,
        scheduling_key: SchedulingKey,
        size: Size,
        alone: RoleShape | None,
        largest_free: dict[int, Resources | None],
    ) -> Callable[[Cluster], Verdict]:
        """Return a function that gives what a cluster lacks for equivalent jobs of this size; what it depends on is
        stored in ``largest_free``."""

        def lack_on(cluster: Cluster) -> Verdict:
            if alone is not None:
                most = self.index.most_of(alone, cluster.id)
                lack = short_of(alone, most)
                if lack is not None and most:
                    if cluster.id in largest_free:
                        largest_free[cluster.id] = most
                    return self._lacking(cluster, lack)
            outcome = self.index.option(scheduling_key.shape_id, [size], cluster, None)
            return self._lacking(cluster, outcome.sentence if isinstance(outcome, Shortfall) else "")

        return lack_on

    def first_lacking(self, scheduling_key: SchedulingKey, size: Size, most: int) -> list[Verdict]:
        """Return what the first clusters in the order of names lack; clusters on which the gang never fits are skipped."""
        found: list[Verdict] = []
        ranking = self._rankings[scheduling_key]
        # The cached verdicts are not changed by these.
        lacks, lack_on = ranking.lacks, self._lack_of(scheduling_key, size, ranking.alone, {})
        for cluster in self.index.clusters:
            if cluster.id in lacks and self.index.never(scheduling_key.shape_id, cluster) is None:
                found.append(lack_on(cluster))
                if len(found) == most:
                    break
        return found

    def _lacking(self, cluster: Cluster, sentence: str) -> Verdict:
        """Return the verdict on a cluster without enough free capacity: one object per sentence."""
        said = self._said.get(cluster.id)
        if said is None:
            said = self._said[cluster.id] = {}
        found = said.get(sentence)
        if found is None:
            if len(said) >= MOST_OPTIONS:
                said.clear()
            found = said[sentence] = Verdict(cluster=cluster.name, check=Check.NO_ROOM, sentence=sentence)
        return found
