"""No blocked job starves: it starts at the latest its class's longest wait after its submission, plus what then runs still takes.

Worlds without any time limit are played, event by event. Whatever comes later, narrower or as wide, must not delay it beyond that,
although run times are predicted from what ended before, and predictions are wrong.
"""

from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.building import NOW, StateBuilder, nodes, simple
from tests.unit.simulation_building import group, role
from tests.unit.simulation_building import spec as cluster
from trainmaster.fake_cluster.fleet import Fleet
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.tenants import PriorityClassSpec, QueueSpec
from trainmaster_dispatcher.domain.priority_classes import SHIPPED
from trainmaster_dispatcher.whatif.engine import Declared, Simulation
from trainmaster_dispatcher.whatif.trace import Trace, TraceJob

LONGEST = {"high": 60.0, "normal": 300.0, "low": 900.0}


@dataclass
class World:
    """A cluster of single-core nodes; runs end after times that the scheduler does not know."""

    builder: StateBuilder
    takes: dict[str, float]
    """By job: the time that it runs, in seconds."""
    started: dict[str, float] = field(default_factory=dict)
    _ends: list[tuple[float, str]] = field(default_factory=list)

    def submit(self, name: str, size: int, of: str, queue: str, takes: float, user: str = "") -> None:
        self.takes[name] = takes
        self.builder.job(name, simple(size), of=of, queue=queue, age=NOW - self.builder.now, user=user)
        self.cycle()

    def cycle(self) -> None:
        for name in self.builder.applied().started:
            self.started[name] = self.builder.now
            heappush(self._ends, (self.builder.now + self.takes[name], name))

    def until(self, at: float) -> None:
        """Play until ``at``: a cycle at each end, and every 10 seconds, as the leader has one without any change."""
        while (now := self.builder.now) < at:
            following = min(now + 10, at, self._ends[0][0] if self._ends else inf)
            self.builder.later(following - now)
            while self._ends and self._ends[0][0] <= self.builder.now:
                self.builder.completed(heappop(self._ends)[1])
            self.cycle()

    def latest_end(self, at: float) -> float:
        return max((end for end, _ in self._ends), default=at)


def world(cores: int, *queues: str) -> StateBuilder:
    builder = StateBuilder().cluster("c", nodes(cores, cpu=1), lease=10.0**9)
    for of, seconds in LONGEST.items():
        builder.longest_wait(of, seconds).lasting(of)
    for queue in queues:
        builder.queue(queue)
    return builder


@dataclass(frozen=True)
class LaterJob:
    """A job that comes after the gang."""

    after: float
    size: int
    takes: float
    of: str
    queue: str


def starts_by_its_bound(queue: str, before: list[LaterJob], later: list[LaterJob], cores: int, size: int) -> None:
    """Play a world; assert that a gang of class normal starts by its bound."""
    play = World(world(cores, "first", "second"), {})
    for number, one in enumerate(before):
        play.submit(f"before{number}", one.size, one.of, one.queue, one.takes)
    play.submit("gang", size, "normal", queue, 100.0)
    due = NOW + LONGEST["normal"] + 1
    coming = sorted(later, key=lambda one: one.after)
    split = sum(NOW + one.after < due for one in coming)
    for number, one in enumerate(coming[:split]):
        play.until(NOW + one.after)
        play.submit(f"later{number}", one.size, one.of, one.queue, one.takes)
    play.until(due)
    bound = play.latest_end(due) + 1
    for number, one in enumerate(coming[split:], start=split):
        play.until(NOW + one.after)
        play.submit(f"later{number}", one.size, one.of, one.queue, one.takes)
    play.until(bound)
    assert play.started.get("gang", inf) <= bound, (play.started, bound)


sizes = st.integers(1, 4)
jobs = st.builds(
    LaterJob,
    after=st.floats(1, 1500).map(round).map(float),
    size=sizes,
    takes=st.sampled_from([20.0, 75.0, 200.0]),
    of=st.sampled_from(["normal", "low"]),
    queue=st.sampled_from(["first", "second"]),
)


@given(
    queue=st.sampled_from(["first", "second"]),
    before=st.lists(jobs, max_size=4),
    later=st.lists(jobs, max_size=40),
    cores=st.integers(4, 6),
)
def test_no_later_job_of_a_class_that_is_no_higher_delays_a_gang_beyond_its_bound(
    queue: str, before: list[LaterJob], later: list[LaterJob], cores: int
) -> None:
    running, free = [], cores
    for one in before:
        if one.size <= free:
            running.append(one)
            free -= one.size
    starts_by_its_bound(queue, running, later, cores, 4)


@pytest.mark.parametrize("queue", ["first", "second"])
@pytest.mark.parametrize("size", [1, 4])
def test_a_steady_stream_does_not_starve_a_gang_of_the_whole_cluster(queue: str, size: int) -> None:
    """The core that the last run frees stays kept, although of two queues that use nothing the older one has the turn."""
    stream = [LaterJob(10.0 * number, size, 75.0, "normal", "first") for number in range(1, 200)]
    before = [LaterJob(0, 1, 75.0, "normal", "first")] * 4
    starts_by_its_bound(queue, before, stream, 4, 4)


def test_waits_of_classes_are_in_the_proportion_of_their_longest_waits() -> None:
    """No class starves where more comes than can run, and none loses its meaning."""
    builder = world(2)
    play = World(builder, {})
    for number in range(600):
        of = ("high", "normal", "low")[number % 3]
        play.submit(f"{of}{number}", 1, of, "main", 30.0)
        play.until(NOW + 10.0 * (number + 1))
    waits = {
        of: [at - NOW - 10.0 * int(name.removeprefix(of)) for name, at in play.started.items() if name.startswith(of)]
        for of in LONGEST
    }
    last = {of: sum(found[-10:]) / 10 for of, found in waits.items()}
    assert all(found for found in waits.values())
    for of in ("normal", "low"):
        assert last[of] / last["high"] == pytest.approx(LONGEST[of] / LONGEST["high"], rel=0.35)


@pytest.mark.parametrize(
    "queues",
    [dict.fromkeys(("ann", "ben", "cleo"), "first"), {"ann": "first", "ben": "second", "cleo": "third"}],
    ids=["users", "queues"],
)
def test_what_is_kept_for_jobs_that_have_waited_long_goes_to_one_user_after_the_other(queues: dict[str, str]) -> None:
    """The cluster is too small for two of these jobs beside each other, and each user submits more than it has room for. What was kept
    for a job is not kept for the next one of the same user afterwards, whose turn has not come."""
    sizes, seconds = {"ann": 2, "ben": 3, "cleo": 3}, {"ann": 40.0, "ben": 55.0, "cleo": 70.0}
    builder = world(4, *dict.fromkeys(queues.values()))
    play = World(builder, {})
    for number in range(360):
        for user, queue in queues.items():
            play.submit(f"{user}{number}", sizes[user], "normal", queue, seconds[user], user)
        play.until(NOW + 10.0 * (number + 1))
    found = {user: sum(name.startswith(user) for name in play.started) for user in queues}
    assert max(found.values()) <= 1.35 * min(found.values()), found


STREAM_SECONDS = 3875.0
UNBOUNDED = PriorityClassSpec(name="unbounded", value=0)


def wait_beside_a_stream(*classes: PriorityClassSpec, predicts: bool) -> float:
    """Return how long a gang of 4 waits for 4 cores that single-core jobs keep busy, without any time limit."""
    ends = {
        "labels": {"sim.trainmaster.dev/run-time": "forever"}
    }  # when the trace says so, and not by a time of its own
    one, four = [
        JobSpec.model_validate({"name": "job", "queue": "all", "roles": [role(replicas=many)], **ends})
        for many in (1, 4)
    ]
    jobs = [TraceJob(999, 100.0, 60.0, four)]
    jobs += [TraceJob(number, at, 75.0, one) for number in range(1, 300) if (at := 18.7 * number) < STREAM_SECONDS]
    fleet = Fleet(clusters=(cluster(group(count=1, cpu=4)),))
    outcome = Simulation(fleet, Declared([QueueSpec(path="all")], classes), predicts=predicts).run(
        Trace("stream", tuple(sorted(jobs, key=lambda job: job.submit)))
    )
    return next(one.wait for one in outcome.records if one.job.number == 999)


def test_the_shipped_classes_bound_the_wait_of_a_gang_beside_a_stream_of_small_jobs() -> None:
    assert wait_beside_a_stream(UNBOUNDED, predicts=False) > STREAM_SECONDS - 100
    assert 1800 <= wait_beside_a_stream(predicts=False) <= 1800 + 75 + 10
    high = SHIPPED[0].model_copy(update={"default": True})
    assert 600 <= wait_beside_a_stream(high, predicts=False) <= 600 + 75 + 10


@pytest.mark.parametrize("classes", [(), (UNBOUNDED,)])
def test_predicted_run_times_let_a_gang_start_beside_a_stream_of_small_jobs_as_soon_as_exact_limits_would(
    classes: tuple[PriorityClassSpec, ...],
) -> None:
    assert wait_beside_a_stream(*classes, predicts=True) <= 2 * 75


@pytest.mark.parametrize("had_it", [True, False])
def test_a_gang_that_has_waited_long_gets_the_cluster_before_a_younger_job_whose_turn_is_first(had_it: bool) -> None:
    """``had_it``: whether it had the cluster before, for a time by predictions; else the younger job had it."""
    builder = world(4, "first", "second")
    for name, size in (("two", 2), ("one", 1)):
        builder.run(name, simple(size), on="c", queue="second", ago=10.0, predicted=5000.0)
    builder.learnt(simple(2), 5000.0)
    builder.job("gang", simple(4), queue="second", age=295.0)
    if not had_it:
        builder.job("young", simple(2), queue="first", age=1.0)
    before = builder.applied().plan.reservations
    assert set(before) == {builder.ids["gang" if had_it else "young"]}
    if had_it:
        builder.job("young", simple(2), queue="first", age=1.0)
    plan = builder.later(10).applied().plan
    assert {one: kept.is_sure for one, kept in plan.reservations.items()} == {builder.ids["gang"]: True}
    builder.completed("two")
    assert builder.later(1).applied().started == [], "the two cores that are free now stay free for the gang"
    builder.completed("one")
    assert builder.later(1).applied().started == ["gang"]
