"""Whose turn it is: class, job priority and age inside a queue, weighted dominant shares between queues, recursively."""

from collections import Counter

import pytest

from tests.unit.building import StateBuilder, nodes, simple

ONE_PLACE = nodes(1, cpu=1)


def test_the_drf_paper_gives_user_a_three_tasks_and_user_b_two() -> None:
    """Ghodsi et al., NSDI 2011, section 4.1: 9 CPUs and 18 GB; A wants 1 CPU and 4 GB, B wants 3 CPUs and 1 GB."""
    builder = StateBuilder().cluster("c", nodes(1, cpu=9, memory="18G")).queue("a").queue("b")
    builder.jobs(9, "a", simple(cpu=1, memory="4G"), queue="a").jobs(9, "b", simple(cpu=3, memory="1G"), queue="b")
    started = builder.cycle().started
    assert Counter(name[0] for name in started) == {"a": 3, "b": 2}


IN_A_QUEUE: dict[str, tuple[StateBuilder, str]] = {
    "the higher class goes first": (
        StateBuilder().job("low", of="low", age=99, priority=1000).job("high", of="high", priority=-1000),
        "high",
    ),
    "a point of job priority is worth a minute of age": (
        StateBuilder().job("old", age=59).job("raised", priority=1),
        "raised",
    ),
    "and no more than that": (StateBuilder().job("old", age=61).job("raised", priority=1), "old"),
    "an urgent job goes before a higher class": (
        StateBuilder().longest_wait("low", 30).job("high", of="high", age=999).job("low", of="low", age=31),
        "low",
    ),
    "until then it waits for the higher class": (
        StateBuilder().longest_wait("low", 30).job("high", of="high").job("low", of="low", age=29),
        "high",
    ),
    "of urgent jobs the oldest goes first, whatever its class": (
        StateBuilder()
        .longest_wait("low", 30)
        .longest_wait("high", 30)
        .job("high", of="high", age=40)
        .job("low", of="low", age=50),
        "low",
    ),
    "of equals the older goes first": (StateBuilder().job("young").job("old", age=1), "old"),
    "of equals of one age the one that was submitted first": (StateBuilder().job("first").job("second"), "first"),
    "jobs of other shapes have no advantage": (StateBuilder().job("big", simple(cpu="0.5")).job("old", age=5), "old"),
}


@pytest.mark.parametrize(("builder", "first"), IN_A_QUEUE.values(), ids=IN_A_QUEUE)
def test_inside_a_queue(builder: StateBuilder, first: str) -> None:
    assert builder.cluster("c", nodes(1, cpu=2)).cycle().started[0] == first


def shared(builder: StateBuilder, *queues: str, places: int = 12) -> Counter[str]:
    """Return how many one-CPU jobs of each queue start on ``places`` CPUs, with more than enough jobs."""
    builder.cluster("c", nodes(places, cpu=1))
    for queue in queues:
        builder.jobs(places, f"{queue}#", queue=queue)
    return Counter(name.partition("#")[0] for name in builder.cycle().started)


BETWEEN: dict[str, tuple[StateBuilder, tuple[str, ...], dict[str, int]]] = {
    "siblings share alike": (
        StateBuilder().queue("a").queue("b").queue("c"),
        ("a", "b", "c"),
        {"a": 4, "b": 4, "c": 4},
    ),
    "weights divide": (StateBuilder().queue("a", weight=2).queue("b"), ("a", "b"), {"a": 8, "b": 4}),
    "who has no jobs leaves its part to others": (StateBuilder().queue("a").queue("b"), ("a",), {"a": 12}),
    "parents share before children do": (
        StateBuilder().queue("x/1").queue("x/2").queue("y/1"),
        ("x/1", "x/2", "y/1"),
        {"x/1": 3, "x/2": 3, "y/1": 6},
    ),
    "weights count at each level": (
        StateBuilder().queue("x", weight=2).queue("x/1", weight=3).queue("x/2").queue("y"),
        ("x/1", "x/2", "y"),
        {"x/1": 6, "x/2": 2, "y": 4},
    ),
    "three levels": (
        StateBuilder().queue("o/t/1").queue("o/t/2").queue("o/u").queue("p"),
        ("o/t/1", "o/t/2", "o/u", "p"),
        {"o/t/1": 2, "o/t/2": 1, "o/u": 3, "p": 6},
    ),
    "a queue that cannot use its part leaves it inside its parent": (
        StateBuilder().queue("x/1", max_running=1).queue("x/2").queue("y"),
        ("x/1", "x/2", "y"),
        {"x/1": 1, "x/2": 5, "y": 6},
    ),
}


@pytest.mark.parametrize(("builder", "queues", "parts"), BETWEEN.values(), ids=BETWEEN)
def test_between_queues(builder: StateBuilder, queues: tuple[str, ...], parts: dict[str, int]) -> None:
    assert shared(builder, *queues) == parts


def test_what_runs_already_counts() -> None:
    builder = StateBuilder().cluster("c", nodes(6, cpu=1)).queue("a").queue("b")
    for number in range(3):
        builder.run(f"running{number}", on="c", queue="a")
    builder.jobs(9, "a", queue="a").jobs(9, "b", queue="b")
    assert Counter(name[0] for name in builder.cycle().started) == {"b": 3}


def test_the_dominant_resource_decides_not_the_number_of_jobs() -> None:
    builder = StateBuilder().cluster("c", nodes(1, cpu=10, gpu=10)).queue("cpu").queue("gpu")
    builder.jobs(20, "c", simple(cpu=1), queue="cpu").jobs(20, "g", simple(cpu="0.1", gpu=2), queue="gpu")
    assert Counter(name[0] for name in builder.cycle().started) == {"g": 5, "c": 9}


def test_a_higher_class_has_no_advantage_over_other_queues() -> None:
    builder = StateBuilder().cluster("c", nodes(4, cpu=1)).queue("a").queue("b")
    builder.jobs(4, "a", queue="a", of="high").jobs(4, "b", queue="b", of="low")
    assert Counter(name[0] for name in builder.cycle().started) == {"a": 2, "b": 2}


def test_one_blocked_head_does_not_stop_others_of_its_queue() -> None:
    builder = (
        StateBuilder()
        .cluster("c", nodes(1, cpu=2))
        .job("huge", simple(cpu=2), of="high")
        .run("there", on="c", of="high")
    )
    outcome = builder.job("small", of="low").cycle()
    assert outcome.started == ["small"]
    assert outcome.reason("huge").sentence.startswith("It waits for free capacity")


def test_identical_blocked_jobs_do_not_stop_a_different_one_behind_them() -> None:
    builder = StateBuilder().cluster("c", nodes(1, cpu=1)).jobs(500, "huge", simple(cpu=2)).job("small")
    assert builder.cycle().started == ["small"]


def test_jobs_of_a_queue_that_has_become_a_parent_still_start() -> None:
    builder = StateBuilder().cluster("c", nodes(4, cpu=1)).queue("x").jobs(2, "early", queue="x")
    builder.queue("x/1").job("late", queue="x/1")
    assert sorted(builder.cycle().started) == ["early1", "early2", "late"]


def test_jobs_of_a_queue_that_is_not_known_yet_wait() -> None:
    builder = StateBuilder().cluster("c", ONE_PLACE).queue("gone").job("a", queue="gone").job("b")
    builder.state.drop_queue(builder.queues["gone"])
    assert builder.cycle().started == ["b"]
