"""Who has to give way to whom, and who never."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.building import GPU, Outcome, StateBuilder, nodes, simple
from trainmaster.protocol.reasons import Token
from trainmaster.protocol.states import ClusterKind, Preemption
from trainmaster_dispatcher.scheduling.preemption.victims import PAUSE_SECONDS
from trainmaster_dispatcher.scheduling.state.flavors import Product


def evicted(outcome: Outcome) -> list[str]:
    """Return the names of the jobs whose runs end."""
    names = {number: name for name, number in outcome.ids.items()}
    return [names[one.job_id] for start in outcome.plan.starts for one in start.evicts]


def full(builder: StateBuilder, *runs: str, queue: str = "main", of: str = "low", ago: float = 0.0) -> StateBuilder:
    """Add a cluster with one CPU for each of ``runs``, and these runs, which fill it."""
    builder.cluster("c", nodes(len(runs), cpu=1))
    for name in runs:
        builder.run(name, on="c", queue=queue, of=of, ago=ago)
    return builder


def tree() -> StateBuilder:
    """Return queues owed (2 CPU guaranteed), rich (1 CPU guaranteed) and poor (nothing)."""
    return StateBuilder().queue("owed", guaranteed={"cpu": 2}).queue("rich", guaranteed={"cpu": 1}).queue("poor")


def session(ago: float) -> StateBuilder:
    """Return a session that is protected for a minute and began ``ago`` seconds ago, and a job of a higher class."""
    builder = StateBuilder().cluster("c", nodes(1, cpu=1))
    protected = replace(simple(), min_run_seconds=60.0)
    return builder.run("r1", protected, on="c", of="low", ago=ago).job("j", of="high")


GIVES_WAY: dict[str, tuple[StateBuilder, list[str]]] = {
    "a lower class to a higher one of its queue": (full(StateBuilder(), "r1").job("j", of="high"), ["r1"]),
    "not an equal class": (full(StateBuilder(), "r1", of="high").job("j", of="high", age=999, priority=100), []),
    "not a higher class": (full(StateBuilder(), "r1", of="high").job("j"), []),
    "not a lower class of another queue": (full(StateBuilder().queue("q"), "r1", queue="q").job("j", of="high"), []),
    "not a class that says it is not preemptible": (
        full(StateBuilder().lasting("low"), "r1").job("j", of="high"),
        [],
    ),
    "not a queue that lets nobody be preempted": (
        full(StateBuilder().queue("main", preemption=Preemption.NEVER), "r1").job("j", of="high"),
        [],
    ),
    "a borrower to a queue that is owed": (full(tree(), "r1", "r2", queue="poor").job("j", queue="owed"), ["r1"]),
    "even of a higher class": (
        full(tree(), "r1", queue="poor", of="high").job("j", queue="owed", of="low"),
        ["r1"],
    ),
    "not to one that wants more than is guaranteed to it": (
        full(tree(), "r1", "r2", "r3", queue="poor").job("j", simple(3), queue="owed"),
        [],
    ),
    "not one that has no more than is guaranteed to it": (
        full(tree(), "r1", queue="rich").job("j", queue="owed"),
        [],
    ),
    "one that would still have what is guaranteed to it": (
        full(tree(), "r1", "r2", queue="rich").job("j", queue="owed"),
        ["r1"],
    ),
    "not a queue that lets only its own lower classes be preempted": (
        full(tree().queue("poor", preemption=Preemption.LOWER_CLASS), "r1", queue="poor").job("j", queue="owed"),
        [],
    ),
    "not within the shortest time that a run is left alone": (
        full(tree().queue("poor", min_run_time=60), "r1", queue="poor", ago=59).job("j", queue="owed"),
        [],
    ),
    "but after it": (
        full(tree().queue("poor", min_run_time=60), "r1", queue="poor", ago=60).job("j", queue="owed"),
        ["r1"],
    ),
    "not within the minimum time of a session": (session(ago=59), []),
    "but after that": (session(ago=60), ["r1"]),
    "nobody where the gang fits anyway": (
        full(tree(), "r1", queue="poor").cluster("d", nodes(1, cpu=1)).job("j", queue="owed"),
        [],
    ),
    "nobody where it would not help": (full(tree(), "r1", queue="poor").job("j", simple(cpu=2), queue="owed"), []),
    "cousins, where the parents are owed": (
        full(
            StateBuilder().queue("x", guaranteed={"cpu": 1}).queue("x/a", guaranteed={"cpu": 1}).queue("y/b"),
            "r1",
            queue="y/b",
        ).job("j", queue="x/a"),
        ["r1"],
    ),
    "cousins, where the parent says nothing of its own": (
        full(StateBuilder().queue("x/a", guaranteed={"cpu": 1}).queue("y/b"), "r1", queue="y/b").job("j", queue="x/a"),
        ["r1"],
    ),
    "not cousins, where the parent has had its guarantee by another child": (
        full(
            StateBuilder()
            .queue("x", guaranteed={"cpu": 1})
            .queue("x/a", guaranteed={"cpu": 1})
            .queue("x/c")
            .queue("y/b")
            .cluster("d", nodes(1, cpu=1))
            .run("there", on="d", queue="x/c"),
            "r1",
            queue="y/b",
        ).job("j", queue="x/a"),
        ["there"],
    ),
}


@pytest.mark.parametrize(("builder", "victims"), GIVES_WAY.values(), ids=GIVES_WAY)
def test_who_gives_way(builder: StateBuilder, victims: list[str]) -> None:
    outcome = builder.cycle()
    assert evicted(outcome) == victims
    assert (outcome.started == ["j"]) is bool(victims) or "d" in builder.clusters


def test_the_start_says_whom_it_costs_what_and_why() -> None:
    outcome = full(tree(), "r1", queue="poor").job("j", queue="owed").cycle()
    start = outcome.start("j")
    assert start.evicts[0].why == (
        "preempted for j-h7yf64e: queue owed takes back what is guaranteed to it, and poor had borrowed"
    )
    assert start.why.startswith("c, where one run ends for it: preempted for j-")
    assert "1 runs end for them" in outcome.plan.sentence


CHOSEN: dict[str, tuple[StateBuilder, str, list[str]]] = {
    "the lowest class first": (
        StateBuilder().cluster("c", nodes(2, cpu=1)).run("n", on="c", of="normal").run("l", on="c", of="low", ago=99),
        "1",
        ["l"],
    ),
    "of equals the one with the least work done": (
        full(StateBuilder(), "old", "young").older("old", 90),
        "1",
        ["young"],
    ),
    "of the queue that is most over its guarantee": (
        full(tree().queue("more"), "p1", "m1", "m2", queue="poor").moved("m1", "more").moved("m2", "more"),
        "owed",
        ["m1"],
    ),
    "one large rather than several small ones": (
        full(StateBuilder(), "s1", "s2").cluster("d", nodes(1, cpu=2)).run("l", simple(cpu=2), on="d", of="low"),
        "2",
        ["l"],
    ),
    "no more than are needed": (
        StateBuilder()
        .cluster("c", nodes(1, "small", cpu=1), nodes(1, "big", cpu=2))
        .run("young", on="c", of="low", placement={"small": {"worker": 1}})
        .run("old", simple(cpu=2), on="c", of="low", ago=50, placement={"big": {"worker": 1}}),
        "2",
        ["old"],
    ),
}


@pytest.mark.parametrize(("builder", "taker", "victims"), CHOSEN.values(), ids=CHOSEN)
def test_of_those_who_may_give_way(builder: StateBuilder, taker: str, victims: list[str]) -> None:
    if taker == "owed":
        builder.job("j", queue="owed")
    else:
        builder.job("j", simple(cpu=taker), of="high")
    assert evicted(builder.cycle()) == victims


def test_all_victims_are_on_the_one_cluster_where_the_gang_then_fits() -> None:
    builder = StateBuilder().cluster("a", nodes(1, cpu=1)).cluster("b", nodes(2, cpu=1))
    builder.run("r1", on="a", of="low").run("r2", on="b", of="low").run("r3", on="b", of="low")
    outcome = builder.job("j", simple(2), of="high").cycle()
    assert sorted(evicted(outcome)) == ["r2", "r3"]
    assert outcome.where == {"j": "b"}


def test_a_queue_at_its_limit_makes_room_for_its_higher_class() -> None:
    builder = (
        StateBuilder().queue("q", limits={"cpu": 1}).cluster("c", nodes(9, cpu=1)).run("r", on="c", queue="q", of="low")
    )
    outcome = builder.job("j", queue="q", of="high").applied()
    assert [one.job_id for one in outcome.plan.stops] == [builder.ids["r"]]
    assert outcome.started == [], "the limit holds while the other one is stopping"
    assert (outcome.reason("j").token, outcome.reason("j").sentence) == (
        Token.PREEMPTING,
        "Its queue is at its limit, and runs of a lower class in it are being ended for it.",
    )
    again = builder.cycle()
    assert again.plan.stops == [], "one is enough"
    assert again.reason("j").token is Token.PREEMPTING, "as long as the other one is stopping"
    assert builder.ended("r").cycle().started == ["j"]


def test_what_is_owed_comes_back_at_once_though_another_queue_keeps_its_own_part() -> None:
    """Ten places, four of them kept: the owed queue's jobs are sent as their victims are asked to stop, all in one cycle."""
    builder = tree().queue("keeper", guaranteed={"cpu": 4}, lending={"cpu": 0}).queue("owed", guaranteed={"cpu": 6})
    builder.cluster("c", nodes(10, cpu=1))
    for number in range(6):
        builder.run(f"r{number}", on="c", queue="poor")
    outcome = builder.jobs(3, "j", simple(2), queue="owed").cycle()
    assert outcome.started == ["j1", "j2", "j3"]
    assert len(evicted(outcome)) == 6


def test_what_is_stopping_already_is_waited_for() -> None:
    builder = full(StateBuilder(), "r1", "r2")
    builder.stopping("r1")
    outcome = builder.job("j", of="high").cycle()
    assert evicted(outcome) == []
    assert outcome.started == []


def test_what_is_stopping_on_one_cluster_is_waited_for_before_a_run_on_another_is_ended() -> None:
    builder = StateBuilder().queue("other")
    builder.cluster("a", nodes(1, cpu=1)).run("r1", on="a", queue="other")
    builder.cluster("b", nodes(1, cpu=1)).run("r2", on="b", of="low")
    builder.stopping("r1")
    assert evicted(builder.job("j", of="high").cycle()) == []
    assert builder.ended("r1").cycle().started == ["j"]


def test_until_the_victims_have_gone_nobody_else_gets_their_place() -> None:
    builder = full(StateBuilder(), "r1", "r2").job("j", simple(2), of="high")
    assert sorted(evicted(builder.applied())) == ["r1", "r2"]
    assert builder.job("next").cycle().started == []
    builder.ended("r1")
    assert builder.cycle().started == []
    builder.ended("r2")
    assert builder.cycle().started == []
    assert builder.ended("j").cycle().started == ["next"]


def test_several_jobs_of_one_cycle_never_count_on_the_same_victim() -> None:
    builder = full(StateBuilder(), *(f"r{number}" for number in range(6))).jobs(9, "j", of="high")
    outcome = builder.cycle()
    assert len(outcome.started) == 6
    assert sorted(evicted(outcome)) == [f"r{number}" for number in range(6)]


def test_nothing_is_taken_back_right_after_a_cluster_has_lost_nodes() -> None:
    builder = full(tree(), "r1", "r2", queue="poor").job("j", queue="owed")
    builder.cluster("c", nodes(1, cpu=1), at=builder.now)
    assert evicted(builder.cycle()) == []
    builder.cluster("c", nodes(2, cpu=1)).later(PAUSE_SECONDS)
    assert len(evicted(builder.cycle())) == 1


def test_an_exchange_is_never_undone_by_the_next_ones() -> None:
    """The evicted jobs wait again, and ended runs come back as waiting jobs: after some cycles nothing is evicted any more."""
    builder = tree().cluster("c", nodes(6, cpu=1))
    for number in range(6):
        builder.run(f"p{number}", on="c", queue="poor", of="low")
    for queue in ("owed", "rich"):
        builder.jobs(4, f"{queue}-", queue=queue, of="low").jobs(4, f"{queue}+", queue=queue, of="high")
    rounds = []
    for _ in range(10):
        outcome = builder.applied()
        lost = evicted(outcome)
        rounds.append(len(lost))
        for name in lost:
            builder.requeued(name)
    assert rounds[0] > 0
    assert rounds[-3:] == [0, 0, 0], rounds
    running = Counter(builder.state.queues[run.queue_id].path for run in builder.state.runs.values())
    assert running["owed"] >= 2
    assert running["rich"] >= 1


class TestQuotaThatIsFreed:
    """What is given back by runs that end is kept for the job that they end for."""

    def until_started(self, builder: StateBuilder, job: str, most: int = 6) -> list[int]:
        """Run cycles until the job starts; return how many runs each ended. Ended runs go, and their jobs wait again."""
        ended = []
        for _ in range(most):
            outcome = builder.applied()
            victims = [one.job_id for one in outcome.plan.stops] + [
                one.job_id for start in outcome.plan.starts for one in start.evicts
            ]
            ended.append(len(victims))
            if job in outcome.started:
                return ended
            names = {number: name for name, number in outcome.ids.items()}
            for number in victims:
                builder.requeued(names[number])
        raise AssertionError(f"{job} did not start: {ended}")

    def test_nobody_of_the_queue_uses_it_up_before(self) -> None:
        builder = StateBuilder().queue("q", limits={"cpu": 2}).cluster("c", nodes(9, cpu=1))
        builder.run("r1", on="c", queue="q", of="low").run("r2", on="c", queue="q", of="low")
        builder.job("j", simple(2), queue="q", of="high").jobs(9, "low", queue="q", of="low")
        assert self.until_started(builder, "j") == [2, 0]

    def test_nobody_of_a_sibling_does_either(self) -> None:
        builder = StateBuilder().queue("x", limits={"cpu": 2}).queue("x/owed", guaranteed={"cpu": 2}).queue("x/poor")
        builder.cluster("c", nodes(9, cpu=1)).run("r1", on="c", queue="x/poor").run("r2", on="c", queue="x/poor")
        builder.job("j", simple(2), queue="x/owed").jobs(9, "p", queue="x/poor")
        assert self.until_started(builder, "j") == [2, 0]


def test_a_limit_elsewhere_does_not_stop_a_queue_from_taking_back() -> None:
    kinds = (ClusterKind.PRIVATE, ClusterKind.PUBLIC)
    builder = tree().queue("owed", guaranteed={"cpu": 2}, limits={"cpu@kind=public": 0}, kinds=kinds)
    full(builder, "r1", "r2", queue="poor").cluster("cloud", nodes(9, cpu=1), kind=ClusterKind.PUBLIC)
    assert evicted(builder.job("j", queue="owed").cycle()) == ["r1"]


def test_a_guarantee_of_a_product_is_taken_back() -> None:
    builder = StateBuilder().queue("owed", guaranteed={"gpu@product=H100": 2}).queue("poor")
    builder.cluster("c", nodes(1, labels={"product": "H100"}, gpu=2))
    builder.run("r", simple(gpu=2), on="c", queue="poor", placement={"nodes": {"worker": 1}})
    assert evicted(builder.job("j", simple(gpu=2), queue="owed").cycle()) == ["r"]


class TestSeveralProducts:
    """A cluster with devices of two products: on which flavor a gang is charged is part of the exchange."""

    def cluster(self, **owed: Any) -> StateBuilder:
        builder = StateBuilder().queue("owed", **owed).queue("poor")
        groups = [nodes(1, name, labels={"product": name}, gpu=2) for name in ("A", "H100")]
        builder.cluster("c", *groups)
        for name in ("A", "H100"):
            builder.run(f"on {name}", simple(gpu=2), on="c", queue="poor", placement={name: {"worker": 1}})
        return builder

    def test_a_guarantee_is_taken_back_on_nodes_of_its_product(self) -> None:
        builder = self.cluster(guaranteed={"gpu@product=H100": 2})
        outcome = builder.job("j", simple(gpu=2), queue="owed").cycle()
        assert evicted(outcome) == ["on H100"]
        start = outcome.start("j")
        assert start.placement == {"H100": {"worker": 1}}
        assert start.product == Product(GPU, "H100", "product")

    def test_nothing_is_taken_of_a_product_that_is_not_guaranteed(self) -> None:
        builder = self.cluster(guaranteed={"gpu@product=H100": 2})
        builder.run("own", simple(gpu=2), on="c", queue="owed", placement={"H100": {"worker": 1}}).ended("on H100")
        assert evicted(builder.job("j", simple(gpu=2), queue="owed").cycle()) == []

    def test_a_victim_keeps_what_is_guaranteed_to_its_queue_of_its_product(self) -> None:
        builder = self.cluster(guaranteed={"gpu": 2})
        builder.queue("poor", guaranteed={"gpu@product=A": 2})
        outcome = builder.job("j", simple(gpu=2), queue="owed").cycle()
        assert evicted(outcome) == ["on H100"]

    def test_a_limit_of_a_product_that_a_sibling_has_filled_is_made_room_under(self) -> None:
        builder = StateBuilder().queue("x", limits={"gpu@product=H100": 2})
        builder.queue("x/owed", guaranteed={"gpu@product=H100": 2}).queue("x/poor")
        builder.cluster("c", nodes(2, "H100", labels={"product": "H100"}, gpu=2))
        builder.run("borrower", simple(gpu=2), on="c", queue="x/poor", placement={"H100": {"worker": 1}})
        outcome = builder.job("j", simple(gpu=2), queue="x/owed").cycle()
        assert [one.job_id for one in outcome.plan.stops] == [builder.ids["borrower"]]
        assert outcome.reason("j").token is Token.PREEMPTING
        builder.ended("borrower")
        assert builder.cycle().started == ["j"]


def test_alike_jobs_of_a_queue_without_rights_do_not_stand_in_the_way_of_one_that_has_them() -> None:
    builder = full(tree().queue("rich", guaranteed={"cpu": 1}), "r1", "r2", queue="poor")
    builder.run("big", simple(cpu=1), on="c", queue="owed")
    builder.cluster("c", nodes(3, cpu=1)).job("p", queue="rich").job("o", queue="owed")
    assert sorted(builder.cycle().started) == ["o", "p"]


def test_quota_that_was_freed_for_a_queue_goes_to_it_and_not_to_one_with_no_right_to_it() -> None:
    """Else it would be taken back again, without an end: a/1 comes first by name, and only one job of a may run."""
    builder = StateBuilder().queue("a", max_running=1).queue("a/1").queue("a/2").queue("a/2/x", guaranteed={"cpu": 1})
    builder.cluster("c", nodes(1, cpu=1)).run("borrower", on="c", queue="a/1").job("owed", queue="a/2/x")
    assert [one.job_id for one in builder.cycle().plan.stops] == [builder.ids["borrower"]]
    builder.ended("borrower")
    assert builder.job("borrower", queue="a/1").cycle().started == ["owed"]


def beside_a_reservation(free_cpus: int = 3) -> StateBuilder:
    """Return queue q, which may use 4 CPU and runs one job, and cluster c, reserved for a large job of another queue after it."""
    builder = StateBuilder().queue("other", weight=9.0).queue("q", limits={"cpu": 4})
    builder.cluster("c", nodes(1, "cpus", cpu=1 + free_cpus), nodes(1, "gpus", cpu=1, gpu=1))
    builder.run("short", simple(cpu=1, limit=20.0), on="c", queue="q", of="high")
    builder.job("large", simple(cpu=4), queue="other", age=9)
    return builder.run("low", simple(cpu=1, gpu=1), on="c", queue="q", of="low")


def test_nothing_ends_for_quota_where_the_job_could_not_start_afterwards_either() -> None:
    builder = beside_a_reservation().job("high", simple(cpu=3), queue="q", of="high")
    outcome = builder.cycle()
    assert outcome.plan.stops == []
    assert list(outcome.plan.reservations) == [builder.ids["large"]]


def test_runs_end_for_quota_where_the_job_ends_before_the_reservation() -> None:
    builder = beside_a_reservation().job("high", simple(cpu=3, limit=10.0), queue="q", of="high")
    assert [one.job_id for one in builder.cycle().plan.stops] == [builder.ids["low"]]


def test_runs_end_for_quota_where_their_room_is_enough_beside_the_reservation() -> None:
    builder = StateBuilder().queue("other", weight=9.0).queue("q", limits={"cpu": 4})
    builder.cluster("c", nodes(1, "cpus", cpu=4), nodes(1, "gpus", cpu=3, gpu=1))
    builder.run("short", simple(cpu=1, limit=20.0), on="c", queue="q", of="high")
    builder.job("large", simple(cpu=4), queue="other", age=9)
    builder.run("low", simple(cpu=3, gpu=1), on="c", queue="q", of="low")
    builder.job("high", simple(cpu=3, gpu=1), queue="q", of="high")
    assert [one.job_id for one in builder.cycle().plan.stops] == [builder.ids["low"]]
