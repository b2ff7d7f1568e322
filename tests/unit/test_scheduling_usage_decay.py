"""Past usage: what queues had before lets others go first, fades, and never counts against a guarantee."""

from collections import Counter
from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.building import NOW, StateBuilder, nodes
from tests.unit.test_scheduling_tree import counted, crowd
from trainmaster_dispatcher.scheduling.queries.queue_position import place_of, quotas_of, usage_of
from trainmaster_dispatcher.scheduling.state.usage_decay import LONGEST_GAP, DecayedUsage

DAY = 86_400.0

NOTHING: dict[int, float] = {}


def had(builder: StateBuilder, half_life: float = DAY, **levels: float) -> StateBuilder:
    """Set these levels of past usage, by queue."""
    builder.state.past = DecayedUsage(half_life, NOW, {builder.queues[name]: level for name, level in levels.items()})
    return builder


class TestLevels:
    def test_a_steady_share_is_its_own_level(self) -> None:
        past = DecayedUsage(600.0, 0.0, NOTHING)
        for second in range(10, 20_000, 10):
            past = past.advanced(second, {1: 0.25})
        assert past.levels == {1: pytest.approx(0.25)}

    def test_half_is_left_after_a_half_life(self) -> None:
        past = DecayedUsage(600.0, 100.0, {1: 0.8, 2: 0.4})
        assert past.shares(700.0) == {1: pytest.approx(0.4), 2: pytest.approx(0.2)}
        assert past.advanced(700.0, {}).levels == {1: pytest.approx(0.4), 2: pytest.approx(0.2)}

    def test_it_is_the_mean_weighed_by_age(self) -> None:
        """Against the integral of share times weight, written out: a share of 1 from 300 s to 200 s ago."""
        half_life, step = 150.0, 0.5
        past, now = DecayedUsage(half_life, 0.0, NOTHING), 0.0
        while now < 300.0:
            now += step
            past = past.advanced(now, {1: 1.0} if now <= 100.0 else {})
        rate = log(2) / half_life
        assert past.levels[1] == pytest.approx(exp(-200 * rate) - exp(-300 * rate), rel=1e-6)

    def test_how_often_it_is_looked_at_does_not_matter(self) -> None:
        once = DecayedUsage(600.0, 0.0, {1: 0.5}).advanced(100.0, {1: 0.9, 2: 0.3})
        often = DecayedUsage(600.0, 0.0, {1: 0.5})
        for second in range(1, 101):
            often = often.advanced(second, {1: 0.9, 2: 0.3})
        assert once.levels == {key: pytest.approx(level) for key, level in often.levels.items()}

    def test_of_a_long_time_in_which_nobody_looked_only_the_end_counts(self) -> None:
        past = DecayedUsage(600.0, 0.0, NOTHING).advanced(DAY, {1: 1.0})
        assert past.levels[1] == pytest.approx(1 - 2 ** (-LONGEST_GAP / 600.0))

    def test_a_clock_that_steps_back_changes_nothing(self) -> None:
        past = DecayedUsage(600.0, 1000.0, {1: 0.5})
        assert past.shares(400.0) == {1: 0.5}
        assert past.advanced(400.0, {1: 1.0}) == past

    def test_what_has_faded_is_forgotten(self) -> None:
        assert DecayedUsage(60.0, 0.0, {1: 1.0}).advanced(DAY, {}).levels == {}

    @given(
        st.dictionaries(st.integers(1, 9), st.floats(1e-6, 10), min_size=2),
        st.floats(0, 10 * DAY),
        st.floats(60, 30 * DAY),
    )
    def test_time_alone_never_changes_the_order(self, levels: dict[int, float], later: float, half_life: float) -> None:
        before, after = (
            DecayedUsage(half_life, NOW, levels).shares(NOW),
            DecayedUsage(half_life, NOW, levels).shares(NOW + later),
        )
        for one in levels:
            for other in levels:
                if before[one] < before[other]:
                    assert after[one] <= after[other]


class TestTurns:
    def test_who_had_more_lets_others_go_first(self) -> None:
        builder = crowd(StateBuilder().queue("a").queue("b"), "a", "b")
        assert counted(builder) == {"a": 6, "b": 6}
        assert counted(had(builder, a=0.5)) == {"a": 3, "b": 9}
        assert counted(had(builder, a=2.0)) == {"b": 12}
        assert counted(had(builder, a=0.5, b=0.5)) == {"a": 6, "b": 6}

    def test_what_was_long_ago_counts_less(self) -> None:
        builder = had(crowd(StateBuilder().queue("a").queue("b"), "a", "b"), half_life=100.0, a=1.0)
        assert counted(builder.later(100.0)) == {"a": 3, "b": 9}

    def test_what_is_guaranteed_does_not_wear_off(self) -> None:
        builder = crowd(StateBuilder().queue("a", guaranteed={"cpu": 8}).queue("b"), "a", "b")
        assert counted(builder) == {"a": 10, "b": 2}
        assert counted(had(builder, a=5.0)) == {"a": 9, "b": 3}, "its guarantee, and the one job that brings it beyond"

    def test_of_two_within_their_guarantees_the_one_that_had_less_goes_first(self) -> None:
        builder = StateBuilder().queue("a", guaranteed={"cpu": 8}).queue("b", guaranteed={"cpu": 8})
        assert counted(had(crowd(builder, "a", "b", places=4), a=1.0)) == {"b": 4}

    def test_it_counts_at_each_level_of_the_tree(self) -> None:
        builder = StateBuilder().queue("x").queue("x/a").queue("x/b").queue("y")
        crowd(builder, "x/a", "x/b", "y")
        names = counted(had(builder, **{"x/a": 1.0}))
        assert names == Counter({"x/b": 6, "y": 6})

    def test_rows_of_jobs_alike_end_where_the_next_queue_is_due(self) -> None:
        """Both levels are even where a has 448 of 1,024 places and b 576; a row is 1/1024 of everything at most."""
        builder = StateBuilder().queue("a").queue("b")
        builder.cluster("c", nodes(16, cpu=64))
        for queue in ("a", "b"):
            builder.jobs(1024, f"{queue}#", queue=queue)
        assert counted(had(builder, a=0.125))["a"] == pytest.approx(448, abs=2)


def test_a_place_tells_what_the_queue_had_before() -> None:
    builder = had(crowd(StateBuilder().queue("a").queue("b"), "a", "b"), a=0.5)
    quotas = quotas_of(builder.engine, NOW)
    place = place_of(builder.state, quotas, builder.ids["a#1"], NOW)
    assert place is not None
    (turn,) = place.factors.queues
    assert (turn.past_share, turn.share, turn.rank, turn.siblings) == (0.5, 0.0, 2, 2)
    shares = {usage.queue: (usage.share, usage.past_share) for usage in usage_of(builder.state, quotas).queues}
    assert shares["a"] == (0.0, 0.5)
    assert shares["b"] == (0.0, 0.0)
