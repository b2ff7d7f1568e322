"""The tree of queues: guarantees, borrowing, lending, narrowed lines, states and strict order."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.building import NOW, StateBuilder, gang, nodes, role, simple
from trainmaster.protocol.reasons import Check, Reason, Tier, Token
from trainmaster.protocol.states import ClusterKind, Order, QueueState
from trainmaster_dispatcher.scheduling.cycle.decide import decide

H100, A100 = {"product": "H100"}, {"product": "A100"}


def counted(builder: StateBuilder) -> Counter[str]:
    """Return how many jobs of each name start, ignoring numbers."""
    return Counter(name.partition("#")[0] for name in builder.cycle().started)


def crowd(builder: StateBuilder, *queues: str, places: int = 12) -> StateBuilder:
    """Add a cluster of ``places`` CPUs, and as many one-CPU jobs in each of these queues."""
    builder.cluster("c", nodes(places, cpu=1))
    for queue in queues:
        builder.jobs(places, f"{queue}#", queue=queue)
    return builder


SHARING: dict[str, tuple[StateBuilder, dict[str, int]]] = {
    "what is guaranteed comes before what is borrowed": (
        crowd(StateBuilder().queue("a", guaranteed={"cpu": 8}).queue("b"), "a", "b"),
        {"a": 10, "b": 2},
    ),
    "beyond guarantees, siblings share alike": (
        crowd(StateBuilder().queue("a", guaranteed={"cpu": 4}).queue("b", guaranteed={"cpu": 2}), "a", "b"),
        {"a": 7, "b": 5},
    ),
    "beyond guarantees, weights divide": (
        crowd(StateBuilder().queue("a", weight=2, guaranteed={"cpu": 3}).queue("b", guaranteed={"cpu": 3}), "a", "b"),
        {"a": 7, "b": 5},
    ),
    "a line has a weight of its own": (
        crowd(StateBuilder().queue("a", weights={"cpu": 3}).queue("b"), "a", "b"),
        {"a": 9, "b": 3},
    ),
    "guarantees above what is there are shared by weight": (
        crowd(StateBuilder().queue("a", guaranteed={"cpu": 99}).queue("b", guaranteed={"cpu": 99}), "a", "b"),
        {"a": 6, "b": 6},
    ),
    "an idle guarantee is lent": (
        crowd(StateBuilder().queue("a", guaranteed={"cpu": 8}).queue("b"), "b"),
        {"b": 12},
    ),
    "what is not lent stays free": (
        crowd(StateBuilder().queue("a", guaranteed={"cpu": 8}, lending={"cpu": 3}).queue("b"), "b"),
        {"b": 7},
    ),
    "what is kept is the queue's own to use": (
        crowd(StateBuilder().queue("a", guaranteed={"cpu": 8}, lending={"cpu": 0}).queue("b"), "a", "b"),
        {"a": 10, "b": 2},
    ),
    "a borrowing limit binds": (
        crowd(StateBuilder().queue("a", guaranteed={"cpu": 2}, borrowing={"cpu": 3}).queue("b"), "a"),
        {"a": 5},
    ),
    "a parent's guarantee is its children's together": (
        crowd(StateBuilder().queue("x", guaranteed={"cpu": 8}).queue("x/1").queue("x/2").queue("y"), "x/1", "x/2", "y"),
        {"x/1": 5, "x/2": 5, "y": 2},
    ),
    "a parent's borrowing limit binds its children together": (
        crowd(
            StateBuilder().queue("x", guaranteed={"cpu": 2}, borrowing={"cpu": 2}).queue("x/1").queue("x/2"),
            "x/1",
            "x/2",
        ),
        {"x/1": 2, "x/2": 2},
    ),
    "what a cousin keeps is kept from its uncle": (
        crowd(
            StateBuilder()
            .queue("x", guaranteed={"cpu": 6}, lending={"cpu": 0})
            .queue("x/1", guaranteed={"cpu": 6}, lending={"cpu": 0})
            .queue("y"),
            "y",
        ),
        {"y": 6},
    ),
    "limit and guarantee may be the same": (
        crowd(StateBuilder().queue("a", guaranteed={"cpu": 5}, limits={"cpu": 5}).queue("b"), "a", "b"),
        {"a": 5, "b": 7},
    ),
}


@pytest.mark.parametrize(("builder", "parts"), SHARING.values(), ids=SHARING)
def test_between_queues(builder: StateBuilder, parts: dict[str, int]) -> None:
    assert counted(builder) == parts


def reason_of(builder: StateBuilder, job: str) -> Reason:
    return builder.cycle().reason(job)


def test_a_borrowing_limit_is_told_as_one() -> None:
    builder = crowd(StateBuilder().queue("a", guaranteed={"cpu": 2}, borrowing={"cpu": 3}), "a")
    reason = reason_of(builder, "a#12")
    assert (reason.token, reason.tier) == (Token.BORROWING_LIMIT, Tier.QUOTA)
    assert reason.sentence == ("Queue a uses 5 cpu; 2 are guaranteed to it and it may borrow 3; this job needs 1 more.")


def test_what_others_keep_is_told_with_their_name() -> None:
    builder = crowd(StateBuilder().queue("a", guaranteed={"cpu": 8}, lending={"cpu": 3}).queue("b"), "b")
    reason = reason_of(builder, "b#12")
    assert (reason.token, reason.tier) == (Token.KEPT_FOR_OTHERS, Tier.QUOTA)
    assert reason.sentence == "Queue a keeps 5 cpu that it does not lend; 0 is left for others, and this job needs 1."


def test_a_queue_uses_what_it_keeps_though_others_had_taken_too_much_before() -> None:
    """A cluster has shrunk under its runs: the kept part is still the queue's own as soon as nodes are free."""
    builder = (
        StateBuilder().queue("a", guaranteed={"cpu": 2}, lending={"cpu": 0}).queue("b").cluster("c", nodes(4, cpu=1))
    )
    for number in range(3):
        builder.run(f"r{number}", on="c", queue="b")
    assert builder.job("mine", queue="a").cycle().started == ["mine"]


class TestNarrowedLines:
    """A line that is narrowed to a kind of cluster or a product is a counter of its own."""

    def test_a_limit_on_public_clusters_leaves_private_ones_open(self) -> None:
        kinds = (ClusterKind.PRIVATE, ClusterKind.PUBLIC)
        builder = StateBuilder().queue("a", limits={"cpu@kind=public": 2}, kinds=kinds)
        builder.cluster("own", nodes(3, cpu=1)).cluster("cloud", nodes(9, cpu=1), kind=ClusterKind.PUBLIC)
        outcome = builder.jobs(9, "a#", queue="a").cycle()
        assert Counter(outcome.where.values()) == {"own": 3, "cloud": 2}
        reason = outcome.reason("a#9")
        assert (reason.token, reason.tier) == (Token.QUEUE_LIMIT, Tier.QUOTA)
        assert reason.sentence == "Queue a uses 2 of its 2 cpu@kind=public; this job needs 1 more."
        assert outcome.verdict("a#9", "cloud").check is Check.QUOTA
        assert outcome.verdict("a#9", "own").check is Check.NO_ROOM

    def test_a_limit_on_a_product_sends_further_jobs_to_another_one(self) -> None:
        builder = StateBuilder().queue("a", limits={"gpu@product=H100": 2})
        builder.cluster("c", nodes(1, "new", labels=H100, gpu=8), nodes(1, "old", labels=A100, gpu=4))
        outcome = builder.jobs(9, "a#", simple(gpu=1), queue="a").cycle()
        groups = Counter(group for start in outcome.plan.starts for group in start.placement)
        assert groups == {"new": 2, "old": 4}
        assert {start.product.name for start in outcome.plan.starts if start.product} == {"H100", "A100"}

    def test_a_gang_gets_one_product_where_quota_depends_on_it(self) -> None:
        builder = StateBuilder().queue("a", limits={"gpu@product=H100": 8})
        builder.cluster("c", nodes(1, "new", labels=H100, gpu=2), nodes(1, "old", labels=A100, gpu=2))
        outcome = builder.job("mixed", simple(3, gpu=1), queue="a").job("one", simple(2, gpu=1), queue="a").cycle()
        assert outcome.started == ["one"]
        assert len(outcome.start("one").placement) == 1

    def test_all_lines_bind_that_a_member_matches(self) -> None:
        kinds = (ClusterKind.PUBLIC,)
        builder = StateBuilder().queue("a", limits={"gpu": 5, "gpu@product=H100": 4, "gpu@kind=public": 3}, kinds=kinds)
        builder.cluster("cloud", nodes(1, labels=H100, gpu=8), kind=ClusterKind.PUBLIC)
        assert len(builder.jobs(9, "a#", simple(gpu=1), queue="a").cycle().started) == 3

    def test_what_runs_is_charged_where_its_agent_says_it_is(self) -> None:
        builder = StateBuilder().queue("a", limits={"gpu@product=H100": 2})
        builder.cluster("c", nodes(1, "new", labels=H100, gpu=2), nodes(1, "old", labels=A100, gpu=2))
        builder.run("there", simple(2, gpu=1), on="c", queue="a", placement={"old": {"worker": 2}})
        outcome = builder.jobs(4, "a#", simple(gpu=1), queue="a").cycle()
        assert [list(start.placement) for start in outcome.plan.starts] == [["new"], ["new"]]

    def test_what_is_kept_of_a_product_is_kept_from_queues_that_say_nothing_of_it(self) -> None:
        builder = (
            StateBuilder().queue("a", guaranteed={"gpu@product=H100": 2}, lending={"gpu@product=H100": 0}).queue("b")
        )
        builder.cluster("c", nodes(1, "new", labels=H100, gpu=4))
        outcome = builder.jobs(4, "b#", simple(gpu=1), queue="b").cycle()
        assert len(outcome.started) == 2
        assert outcome.reason("b#4").token is Token.KEPT_FOR_OTHERS

    def test_a_product_that_is_renamed_is_charged_anew(self) -> None:
        builder = StateBuilder().queue("a", limits={"gpu@product=H100": 2})
        builder.cluster("c", nodes(1, "new", labels=A100, gpu=4))
        builder.run("there", simple(2, gpu=1), on="c", queue="a", placement={"new": {"worker": 2}})
        assert len(builder.jobs(1, "a#", simple(gpu=1), queue="a").cycle().started) == 1
        builder.cluster("c", nodes(1, "new", labels=H100, gpu=4))
        assert builder.cycle().started == []
        builder.ended("there")
        assert len(builder.cycle().started) == 1


class TestStates:
    """Open, held, draining, stopped."""

    @pytest.mark.parametrize(
        ("state", "starts"),
        [
            (QueueState.OPEN, True),
            (QueueState.DRAINING, True),
            (QueueState.HELD, False),
            (QueueState.STOPPED, False),
            (QueueState.SUSPENDED, False),
        ],
    )
    def test_who_starts_jobs(self, state: QueueState, starts: bool) -> None:
        builder = StateBuilder().cluster("c", nodes()).queue("x", state=state).job("j", queue="x")
        outcome = builder.cycle()
        assert (outcome.started == ["j"]) is starts
        if not starts:
            assert outcome.reason("j").sentence == f"Queue x is {state}."
            assert outcome.reason("j").token is Token.QUEUE_HELD

    def test_what_runs_in_a_suspended_queue_and_below_it_is_ended(self) -> None:
        builder = (
            StateBuilder().cluster("c", nodes(4, cpu=1)).queue("x", state=QueueState.SUSPENDED).queue("x/y").queue("z")
        )
        builder.run("own", on="c", queue="x").run("below", on="c", queue="x/y").run("other", on="c", queue="z")
        plan = decide(builder.engine, builder.now)
        assert {(one.job_id, one.why) for one in plan.stops} == {
            (builder.ids[name], "queue x was suspended by an admin") for name in ("own", "below")
        }

    def test_a_run_that_is_stopping_is_not_ended_again(self) -> None:
        builder = (
            StateBuilder().cluster("c", nodes()).queue("x", state=QueueState.SUSPENDED).run("own", on="c", queue="x")
        )
        run = builder.state.runs[builder.ids["own"]]
        builder.state.put_run(replace(run, is_stopping=True))
        assert decide(builder.engine, builder.now).stops == []

    def test_runs_of_a_suspended_queue_end_so_many_in_a_cycle(self) -> None:
        builder = StateBuilder().cluster("c", nodes(9, cpu=1)).queue("x", state=QueueState.SUSPENDED)
        for number in range(9):
            builder.run(f"r{number}", on="c", queue="x")
        assert len(decide(builder.engine, builder.now, most_starts=4).stops) == 4

    def test_what_a_suspended_queue_gives_back_is_not_taken_from_others_as_well(self) -> None:
        """The guarantee of b is met by what leaves; nothing more is ended for it."""
        builder = StateBuilder().cluster("c", nodes(2, cpu=1)).queue("x", state=QueueState.SUSPENDED)
        builder.queue("b", guaranteed={"cpu": 1}).queue("z")
        builder.run("leaves", on="c", queue="x", ago=100).run("stays", on="c", queue="z", ago=100).job("b", queue="b")
        plan = decide(builder.engine, builder.now)
        assert [one.job_id for one in plan.stops] == [builder.ids["leaves"]]
        assert plan.starts == []


class TestStrictOrder:
    """In a strict queue nobody passes a job that may start later."""

    def queue(self, **more: Any) -> StateBuilder:
        return StateBuilder().queue("s", order=Order.STRICT, **more).cluster("c", nodes(2, cpu=2))

    def test_what_is_behind_a_blocked_job_waits_for_it(self) -> None:
        builder = self.queue().run("there", simple(cpu=1), on="c").job("big", simple(2, cpu=2), queue="s")
        outcome = builder.job("small", queue="s").job("other").cycle()
        assert outcome.started == ["other"]
        reason = outcome.reason("small")
        assert (reason.token, reason.tier) == (Token.BEHIND_OTHERS, Tier.QUOTA)
        assert reason.sentence.startswith("Queue s keeps its order, and big-")

    def test_what_is_behind_a_job_over_quota_waits_for_it(self) -> None:
        builder = self.queue(limits={"cpu": 2}).run("there", simple(cpu=1), on="c", queue="s")
        assert builder.job("two", simple(cpu=2), queue="s").job("one", queue="s").cycle().started == []

    def test_a_job_that_could_never_start_holds_up_nobody(self) -> None:
        builder = self.queue(limits={"memory": 1}).job("huge", simple(cpu=99), queue="s")
        builder.job("over", simple(cpu=1, memory=2), queue="s")
        assert builder.job("small", queue="s").cycle().started == ["small"]

    def test_a_strict_queue_that_is_blocked_costs_its_siblings_no_turn(self) -> None:
        builder = self.queue().queue("a").queue("z").run("there", simple(cpu=1), on="c", of="high")
        builder.job("big", simple(2, cpu=2), queue="s").job("a", queue="a").job("z", queue="z")
        assert sorted(builder.cycle().started) == ["a", "z"]

    def test_jobs_start_in_order_as_long_as_they_fit(self) -> None:
        builder = self.queue().jobs(3, "s#", simple(cpu=1), queue="s").job("big", simple(2, cpu=2), queue="s")
        assert builder.job("last", queue="s").cycle().started == ["s#1", "s#2", "s#3"]


def test_shares_are_measured_by_what_is_in_contact_and_what_was_a_quarter_of_an_hour_ago() -> None:
    """The GPU cluster is silent: for fifteen minutes a CPU job is a small share of the whole, afterwards a large one."""

    def first_queue(silent_for: float) -> str:
        builder = StateBuilder().queue("cpu").queue("both")
        builder.cluster("c", nodes(1, cpu=4, memory="8Gi")).cluster("far", nodes(9, cpu=4), lease=-silent_for)
        builder.run("r1", simple(cpu=1), on="c", queue="cpu").run("r2", simple(memory="1Gi"), on="c", queue="both")
        builder.job("cpu#", simple(cpu="0.1"), queue="cpu").job("both#", simple(cpu="0.1"), queue="both")
        return builder.cycle().started[0]

    assert first_queue(899) == "cpu#", "1 of 40 cores against 1 of 8 GiB"
    assert first_queue(901) == "both#", "1 of 4 cores against 1 of 8 GiB"


def test_decide_leaves_the_state_as_it_was() -> None:
    builder = crowd(StateBuilder().queue("a", guaranteed={"cpu": 3}, lending={"cpu": 1}).queue("b"), "a", "b")
    assert decide(builder.engine, NOW) == decide(builder.engine, NOW)


def test_an_elastic_gang_takes_the_size_that_a_narrowed_limit_allows() -> None:
    """The least size is tried where the full one is over a limit that depends on the place."""
    shape = gang(role(6, least=2, gpu=1))
    builder = StateBuilder().queue("a", limits={"gpu@product=H100": 3}).cluster("c", nodes(1, labels=H100, gpu=8))
    assert builder.job("e", shape, queue="a").cycle().start("e").sizes == {"worker": 2}
