"""Chance and visits: functions of seed, words and time alone; and output that is made when it is read."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.simulation_building import cluster, order
from trainmaster.fake_cluster import output
from trainmaster.fake_cluster.node_events import Visits
from trainmaster.fake_cluster.seeded_random import DurationRange, draw


def test_a_draw_depends_on_each_word_and_on_the_seed() -> None:
    assert draw(1, "a", 2) == draw(1, "a", 2)
    assert len({draw(1, "a", 2), draw(1, "a", 3), draw(1, "b", 2), draw(2, "a", 2)}) == 4


def test_draws_are_spread_evenly() -> None:
    tenths = [0] * 10
    for number in range(10_000):
        tenths[int(draw(0, number) * 10)] += 1
    assert all(850 < count < 1150 for count in tenths)


@pytest.mark.parametrize("text", ["", "5", "5s-", "-5s", "9s-1s", "5s-1", "ever"])
def test_what_is_no_span_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|ends before"):
        DurationRange.parse(text)


@given(st.floats(0, 1e6), st.integers(0, 5), st.floats(0.5, 1000), st.floats(0, 1))
@settings(deadline=None)
def test_a_visit_lies_within_the_turn_of_the_moment_asked_for(
    now: float, seed: int, every: float, chance: float
) -> None:
    visits = Visits(every, chance, DurationRange(every / 10, every * 2))
    visit = visits.at(seed, "node", now)
    begins = visit.turn_ends - every
    assert begins - 1e-6 <= now < visit.turn_ends
    assert begins - 1e-6 <= visit.comes <= visit.goes <= visit.turn_ends
    assert visits.at(seed, "node", visit.turn_ends).turn_ends > visit.turn_ends


@given(st.integers(0, 2000), st.integers(0, 500))
@settings(deadline=None)
def test_output_is_the_same_bytes_however_it_is_read(offset: int, limit: int) -> None:
    sim = cluster()
    sim.start(order(labels={"run-time": "10s", "output-rate": "2.5"}), 0.0)
    sim.advance(10.0)
    run = sim.runs["a"]
    _, whole, ended = output.read(run, "worker", 0, 10.0, 0, 1_000_000)
    assert ended
    assert len(whole.splitlines()) == 25
    at, part, _ = output.read(run, "worker", 0, 10.0, offset, limit)
    assert part == whole[at : at + limit]


def test_output_grows_as_time_passes_and_stays_as_it_was() -> None:
    sim = cluster()
    sim.start(order(labels={"run-time": "10s", "output-rate": "1"}), 0.0)
    sim.advance(3.5)
    _, early, ended = output.read(sim.runs["a"], "worker", 0, 3.5, 0, 10_000)
    assert (len(early.splitlines()), ended) == (3, False)
    sim.advance(20.0)
    _, late, ended = output.read(sim.runs["a"], "worker", 0, 20.0, 0, 10_000)
    assert late.startswith(early)
    assert (len(late.splitlines()), ended) == (10, True)
