"""Limits: what a queue and all below it never exceed."""

import pytest

from tests.unit.building import StateBuilder, gang, nodes, role, simple
from trainmaster.protocol.reasons import Tier, Token


def plenty(builder: StateBuilder) -> StateBuilder:
    return builder.cluster("c", nodes(100, cpu=10, memory="64Gi", gpu=8))


LIMITED: dict[str, tuple[StateBuilder, int, str]] = {
    "the limit of its own queue": (
        StateBuilder().queue("a", limits={"cpu": 3}),
        3,
        "Queue a uses 3 of its 3 cpu; this job needs 1 more.",
    ),
    "a limit of its parent": (
        StateBuilder().queue("o", limits={"cpu": 2}).queue("o/a", limits={"cpu": 3}),
        2,
        "Queue o uses 2 of its 2 cpu; this job needs 1 more.",
    ),
    "a limit of the root": (
        StateBuilder().queue("o", limits={"cpu": 4}).queue("o/t", limits={"cpu": 9}).queue("o/t/a"),
        4,
        "Queue o uses 4 of its 4 cpu; this job needs 1 more.",
    ),
    "the most running jobs": (StateBuilder().queue("a", max_running=2), 2, "Queue a runs 2 of at most 2 jobs."),
    "the most running jobs of its parent": (
        StateBuilder().queue("o", max_running=1).queue("o/a"),
        1,
        "Queue o runs 1 of at most 1 jobs.",
    ),
    "a limit on what it does not use": (StateBuilder().queue("a", limits={"gpu": 0}), 10, ""),
}


@pytest.mark.parametrize(("builder", "started", "sentence"), LIMITED.values(), ids=LIMITED)
def test_a_queue_is_held_back_by(builder: StateBuilder, started: int, sentence: str) -> None:
    outcome = plenty(builder).jobs(10, "job", queue=list(builder.queues)[-1]).cycle()
    assert len(outcome.started) == started
    if sentence:
        reason = outcome.reason("job10")
        assert (reason.token, reason.tier, reason.sentence) == (Token.QUEUE_LIMIT, Tier.QUOTA, sentence)
        assert "when other jobs of the queue end" in reason.advice


def test_a_limit_of_nothing_allows_nothing() -> None:
    outcome = plenty(StateBuilder().queue("a", limits={"gpu": 0})).job("g", simple(gpu=1), queue="a").cycle()
    assert outcome.started == []
    assert outcome.reason("g").sentence == (
        "It can never start in queue a: it needs 1 nvidia.com/gpu, and queue a is limited to 0."
    )


def test_a_job_above_the_limit_is_told_that_waiting_does_not_help() -> None:
    outcome = (
        plenty(StateBuilder().queue("a", limits={"memory": "4Gi"})).job("m", simple(2, memory="3Gi"), queue="a").cycle()
    )
    reason = outcome.reason("m")
    assert reason.sentence == "It can never start in queue a: it needs 6Gi memory, and queue a is limited to 4Gi."
    assert reason.token is Token.QUEUE_LIMIT
    assert reason.advice.startswith("Waiting will not help")


def test_a_queue_that_may_run_no_job_never_starts_one() -> None:
    reason = plenty(StateBuilder().queue("a", max_running=0)).job("j", queue="a").cycle().reason("j")
    assert reason.sentence == "It can never start in queue a: queue a may run no job at all."
    assert reason.advice.startswith("Waiting will not help")


def test_amounts_that_look_alike_are_told_to_the_byte() -> None:
    limit = 4 * 2**30
    outcome = (
        plenty(StateBuilder().queue("a", limits={"memory": limit}))
        .job("m", simple(memory=limit + 1), queue="a")
        .cycle()
    )
    assert f"needs {limit + 1} memory, and queue a is limited to {limit}" in outcome.reason("m").sentence


def test_what_runs_counts_for_the_queue_and_all_above_it() -> None:
    builder = plenty(StateBuilder().queue("o", limits={"cpu": 10}).queue("o/a").queue("o/b"))
    builder.run("there", simple(4, cpu=2), on="c", queue="o/b").jobs(9, "job", queue="o/a")
    assert len(builder.cycle().started) == 2


def test_runs_that_need_nothing_count_as_running_jobs() -> None:
    builder = plenty(StateBuilder().queue("a", max_running=1)).run("there", simple(cpu=0), on="c", queue="a")
    assert builder.job("j", queue="a").cycle().started == []


def test_jobs_of_another_shape_may_still_fit_the_limit() -> None:
    builder = plenty(StateBuilder().queue("a", limits={"cpu": 3}))
    builder.job("big", simple(cpu=2), queue="a").job("big2", simple(cpu=2), queue="a").job("small", queue="a")
    assert builder.cycle().started == ["big", "small"]


def test_an_elastic_job_starts_at_the_size_that_its_queue_allows() -> None:
    shape = gang(role(8, least=2, cpu=1))
    outcome = plenty(StateBuilder().queue("a", limits={"cpu": 4})).job("e", shape, queue="a").cycle()
    assert outcome.start("e").sizes == {"worker": 2}


@pytest.mark.parametrize("held", ["a", "o", "o/t"])
def test_a_held_queue_starts_nothing_and_neither_does_what_is_below(held: str) -> None:
    builder = plenty(StateBuilder().queue("a").queue("o").queue("o/t").queue("o/t/x")).queue(held, held=True)
    outcome = builder.job("in", queue="a" if held == "a" else "o/t/x").job("out").cycle()
    assert outcome.started == ["out"]
    reason = outcome.reason("in")
    assert (reason.token, reason.tier) == (Token.QUEUE_HELD, Tier.HELD)
    assert reason.sentence == f"Queue {held} is held."
