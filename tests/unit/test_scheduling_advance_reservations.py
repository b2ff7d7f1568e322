"""Nodes that an admin keeps for a queue in a window of time: who may start there, until when, and what others see."""

import pytest

from tests.unit.building import NOW, StateBuilder, nodes, simple
from trainmaster.protocol.reasons import Check, Tier, Token

DAY = 86_400.0


def world(count: int = 4) -> StateBuilder:
    """Return a cluster of nodes with 4 CPUs each, queue ``main`` for whom nodes are kept, and queue ``other``."""
    return StateBuilder().queue("other").cluster("c", nodes(count, cpu=4))


def weekend(builder: StateBuilder, kept: int = 4, starts: float = 3600, ends: float = DAY) -> StateBuilder:
    return builder.reserved("weekend", kept, queue="main", starts=starts, ends=ends)


# Before the window


def test_what_may_run_into_the_window_waits_and_is_told_why() -> None:
    outcome = weekend(world()).job("j", simple(cpu=1), queue="other").cycle()
    assert outcome.started == []
    reason = outcome.reason("j")
    assert (reason.token, reason.tier) == (Token.RESERVED_FOR_QUEUE, Tier.CAPACITY)
    assert reason.sentence == (
        "It would use nodes that are reserved; c: 4 nodes are reserved for queue main from 1970-01-01T01:16:40Z"
        " to 1970-01-02T00:16:40Z (weekend), and this job has no time limit."
    )
    assert outcome.verdict("j", "c").check is Check.WINDOW


@pytest.mark.parametrize(("limit", "starts"), [(3600, True), (3601, False)])
def test_what_ends_before_it_starts(limit: float, starts: bool) -> None:
    outcome = weekend(world()).job("j", simple(cpu=1, limit=limit), queue="other").cycle()
    assert outcome.started == (["j"] if starts else [])
    if not starts:
        assert "this job may run until after that" in outcome.reason("j").sentence


def test_the_limit_of_the_queue_counts() -> None:
    builder = weekend(world()).queue("other", time_limit=600).job("j", queue="other")
    assert builder.cycle().started == ["j"]


def test_the_queue_and_those_below_it_start_as_ever() -> None:
    builder = StateBuilder().queue("main/a").queue("other").cluster("c", nodes(2, cpu=4))
    builder = (
        weekend(builder, kept=2).job("own", simple(cpu=4), queue="main/a").job("not", simple(cpu=4), queue="other")
    )
    assert builder.cycle().started == ["own"]


def test_others_start_beside_it() -> None:
    builder = weekend(world(), kept=2)
    for number in range(3):
        builder.job(f"j{number}", simple(cpu=4), queue="other")
    outcome = builder.cycle()
    assert outcome.started == ["j0", "j1"]
    assert outcome.reason("j2").token is Token.RESERVED_FOR_QUEUE


def test_runs_that_end_in_time_make_room_for_it() -> None:
    """Two nodes are kept; the runs on two others end before that, so that a job may stay on the fourth."""
    builder = weekend(world(), kept=2)
    ends, stays = simple(cpu=4, limit=600), simple(cpu=4)
    builder.run("r1", ends, on="c", queue="other", placement={"nodes": {"worker": 1}})
    builder.run("r2", stays, on="c", queue="other", placement={"nodes": {"worker": 1}})
    outcome = builder.job("j1", stays, queue="other").job("j2", stays, queue="other").cycle()
    assert outcome.started == ["j1"]


def test_another_cluster_is_taken() -> None:
    builder = world().cluster("d", nodes(1, cpu=4)).reserved("w", 4, queue="main", starts=60, ends=DAY, on=("c",))
    assert builder.job("j", queue="other").cycle().where == {"j": "d"}


def test_without_clusters_each_keeps_as_many() -> None:
    builder = weekend(world(1).cluster("d", nodes(2, cpu=4)), kept=1)
    outcome = builder.job("j1", simple(cpu=4), queue="other").job("j2", simple(cpu=4), queue="other").cycle()
    assert outcome.where == {"j1": "d"}


def test_only_nodes_with_the_labels_are_kept_and_others_are_found() -> None:
    """The best fit would be a node that is kept."""
    builder = StateBuilder().queue("other")
    builder.cluster("c", nodes(1, "kept", cpu=4, labels={"disk": "ssd"}), nodes(1, "plain", cpu=8))
    builder.reserved("w", 1, queue="main", starts=60, ends=DAY, selector=(("disk", "ssd"),))
    outcome = builder.job("j", simple(cpu=4), queue="other").cycle()
    assert outcome.start("j").placement == {"plain": {"worker": 1}}


# In the window, and after it


def test_in_the_window_others_have_what_is_left() -> None:
    builder = weekend(world(), kept=3, starts=-60)
    for number in range(2):
        builder.job(f"j{number}", simple(cpu=4, limit=1), queue="other")
    outcome = builder.cycle()
    assert outcome.started == ["j0"]


def test_own_runs_are_on_what_is_kept() -> None:
    builder = weekend(world(), kept=2, starts=-60)
    builder.run("own", simple(2, cpu=4), on="c", placement={"nodes": {"worker": 2}})
    outcome = builder.job("j1", simple(cpu=4), queue="other").job("j2", simple(cpu=4), queue="other").cycle()
    assert outcome.started == ["j1", "j2"]


def test_what_is_freed_is_kept_until_there_is_enough() -> None:
    builder = weekend(world(2), kept=2, starts=-60)
    builder.run("r1", simple(cpu=4), on="c", queue="other", placement={"nodes": {"worker": 1}})
    assert builder.job("guest", simple(cpu=4), queue="other").cycle().started == []
    assert builder.job("own", simple(cpu=4)).cycle().started == ["own"]


def test_after_it_all_is_free_again() -> None:
    builder = weekend(world(), starts=-DAY, ends=-1)
    assert builder.job("j", queue="other").cycle().started == ["j"]


def test_at_its_end_all_is_free_again() -> None:
    builder = weekend(world(), starts=-60, ends=0)
    assert builder.job("j", queue="other").cycle().started == ["j"]


# With other rules


def test_a_blocked_job_is_not_promised_a_start_in_the_window() -> None:
    builder = weekend(world(1), kept=1, starts=3600, ends=7200)
    builder.run("r", simple(cpu=4, limit=600), on="c", queue="other", placement={"nodes": {"worker": 1}})
    outcome = builder.job("j", simple(cpu=4, limit=5000), queue="other").cycle()
    (reservation,) = outcome.plan.reservations.values()
    assert reservation.at == NOW + 7200
    fits_before = weekend(world(1), kept=1, starts=3600, ends=7200)
    fits_before.run("r", simple(cpu=4, limit=600), on="c", queue="other")
    (early,) = fits_before.job("j", simple(cpu=4, limit=900), queue="other").cycle().plan.reservations.values()
    assert early.at == NOW + 600


def test_nobody_gives_way_to_a_job_that_might_use_what_is_kept() -> None:
    builder = StateBuilder().queue("owed", guaranteed={"cpu": 4}).queue("borrows").cluster("c", nodes(1, cpu=4))
    builder.run("r", simple(cpu=4), on="c", queue="borrows", placement={"nodes": {"worker": 1}}, ago=100)
    builder.job("j", simple(cpu=4), queue="owed")
    assert builder.cycle().plan.starts[0].evicts
    weekend(builder, kept=1)
    assert builder.cycle().plan.starts == []


def test_two_windows_are_both_kept() -> None:
    builder = world().queue("third")
    builder.reserved("one", 2, queue="main", starts=60, ends=DAY).reserved("two", 4, queue="other", starts=-1, ends=60)
    outcome = (
        builder.job("m", simple(cpu=1))
        .job("o", simple(cpu=1), queue="other")
        .job("t", simple(cpu=1), queue="third")
        .cycle()
    )
    assert outcome.started == ["o"]
    assert "(two)" in outcome.reason("m").sentence


def test_rows_of_jobs_alike_end_where_what_is_left_ends() -> None:
    builder = weekend(world(), kept=3).jobs(10, "j", simple(cpu=1), queue="other")
    assert len(builder.cycle().started) == 4
