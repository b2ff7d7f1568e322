"""What is found with less work is what is found with more: layouts and orders of nodes."""

import gc
from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.building import GPU, role, simple
from trainmaster.protocol.agent import CapacityReport, NodeGroup
from trainmaster.protocol.quantities import Resources
from trainmaster_dispatcher.scheduler.gc_tuning import GcTuning
from trainmaster_dispatcher.scheduling.packing.best_fit import fill
from trainmaster_dispatcher.scheduling.packing.bin_layout import ROUNDS, MemberKind, in_rounds, lay_out
from trainmaster_dispatcher.scheduling.packing.free_capacity import FreeCapacity
from trainmaster_dispatcher.scheduling.packing.gang_packing import eligible_groups, only_role, size_choices
from trainmaster_dispatcher.scheduling.packing.node_buckets import Groups, NodeBucket
from trainmaster_dispatcher.scheduling.state.jobs import WaitingJob
from trainmaster_dispatcher.scheduling.state.state import SchedulerState

NAMES = ("cpu", "memory", GPU)
amounts = st.builds(
    lambda cpu, memory, gpu: {"cpu": cpu, "memory": memory} | ({GPU: gpu} if gpu else {}),
    st.integers(0, 6),
    st.integers(0, 6),
    st.integers(0, 3),
)
groups = st.lists(st.tuples(amounts, st.integers(1, 4)), min_size=1, max_size=4).map(
    lambda rows: [NodeGroup(name=f"g{n}", count=count, free=free) for n, (free, count) in enumerate(rows)]
)
members = st.lists(st.tuples(amounts, st.integers(1, 5)), max_size=8)


def as_counter(entries: Sequence[NodeBucket]) -> Counter[tuple[tuple[str, int], ...]]:
    out: Counter[tuple[tuple[str, int], ...]] = Counter()
    for one in entries:
        out[tuple(sorted((name, amount) for name, amount in one.free.items() if amount))] += one.count
    return out


@given(groups, members)
def test_a_layout_on_tuples_is_that_of_filling_one_after_the_other(
    found: list[NodeGroup], wanted: list[tuple[Resources, int]]
) -> None:
    (group, *_) = found
    entries = [NodeBucket(group, group.free, group.count)]
    tuples = [
        (tuple(needs.get(name, 0) for name in NAMES), (2,) if GPU in needs else (), count) for needs, count in wanted
    ]
    work: Groups = {group.name: entries}
    missing = sum(fill(work, needs, count)[0] for needs, count in wanted)
    laid = lay_out(entries, tuples, NAMES)
    if missing:
        assert laid is None
    else:
        assert laid is not None
        assert as_counter(laid) == as_counter(work[group.name])


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1), st.integers(1, 9)), max_size=6))
def test_members_with_equally_many_devices_take_turns(found: list[tuple[int, float, int]]) -> None:
    kinds = [
        (MemberKind((-devices, -share), (number, 0, devices), (2,)), count)
        for number, (devices, share, count) in enumerate(sorted(found, reverse=True))
    ]
    order = in_rounds(kinds)
    together = Counter[int]()
    for need, _, count in order:
        assert need is not None
        together[need[0]] += count
    assert together == Counter({number: count for number, (_, count) in enumerate(kinds)}), "each of them once"
    devices = [need[2] for need, _, _ in order if need is not None]
    assert devices == sorted(devices, reverse=True)
    for many in set(devices):
        equal = [(number, count) for number, (kind, count) in enumerate(kinds) if kind.many_devices == many]
        before = dict.fromkeys((number for number, _ in equal), 0)
        for need, _, count in order if len(equal) > 1 else ():
            if need is not None and need[2] == many:
                before[need[0]] += count
                parts = [before[number] / count for number, count in equal if count >= ROUNDS]
                assert max(parts, default=0) - min(parts, default=0) <= 2 / ROUNDS + 1e-9


@given(groups, members, amounts)
def test_nodes_kept_in_order_are_found_in_the_order_of_a_search(
    found: list[NodeGroup], changes: list[tuple[Resources, int]], needs: Resources
) -> None:
    report = CapacityReport(groups=tuple(found), runtime="local", scheduler="local")
    ranked, plain = FreeCapacity.empty(report), FreeCapacity.empty(report)
    ranked.rank()
    requested = role(cpu=0)
    eligible = eligible_groups(requested, ranked)
    for more, count in changes:
        ranking = ranked.ranking(eligible, needs)
        assert ranking is not None
        listed = [(one.group.name, one.free, one.count) for one in ranking.best(needs)]
        first = ranking.tightest(needs)
        assert (None if first is None else (first.group.name, first.free, first.count)) == next(iter(listed), None)
        for capacity in (ranked, plain):
            work = dict(capacity.groups)
            _, placed = fill(work, more, count)
            capacity.put({name: work[name] for name in placed}, {})
        work = dict(plain.groups)
        assert fill(dict(ranked.groups), needs, 3, eligible, ranked.ranking(eligible, needs)) == fill(work, needs, 3)


def test_only_a_gang_of_one_that_may_be_anywhere_is_looked_at_as_one() -> None:
    one, many = simple(cpu=1), simple(2, cpu=1)
    assert only_role(one, size_choices(one)[0]) is one.roles[0]
    assert only_role(many, size_choices(many)[0]) is None


def test_the_collector_is_kept_away_from_a_state_and_takes_an_old_one() -> None:
    tuning = GcTuning()
    try:
        state = SchedulerState()
        state.put_waiting(WaitingJob(1, 1, "j", 1, 1, 1, 0, 0.0, 0))
        tuning.look(state)
        frozen = gc.get_freeze_count()
        assert frozen > 0
        tuning.look(state)
        assert gc.get_freeze_count() <= frozen, "nothing more is frozen while a state hardly grows"
        tuning.look(SchedulerState())
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        gc.set_threshold(700, 10, 10)
