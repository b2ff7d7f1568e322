"""What always holds in a simulated cluster, whatever it is told and however it is driven."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.simulation_building import cluster, group, order, picture, role, stop
from trainmaster.fake_cluster.cluster import FakeCluster
from trainmaster.fake_cluster.run import FakeRun
from trainmaster.protocol.states import RunState, StopCause

RUNS = [f"run-{letter}" for letter in "abcdefgh"]
NODES = ["cpu-1-0", "cpu-2-0", "gpu-0"]
TIMES = ["0s", "1s", "3s", "1s-9s", "forever"]

run_names = st.sampled_from(RUNS)
labels = st.fixed_dictionaries(
    {"run-time": st.sampled_from(TIMES)},
    optional={
        "start-time": st.sampled_from(["0s", "2s"]),
        "stop-time": st.sampled_from(TIMES),
        "fail": st.sampled_from(["0.5", "1"]),
        "member-failures": st.sampled_from(["1", "3"]),
    },
)


@dataclass(frozen=True)
class Start:
    run: str
    replicas: int
    cpu: int
    gpus: int
    labels: dict[str, str]
    pinned: bool
    level: str | None
    timeout: float
    disconnect: float | None

    def apply(self, sim: FakeCluster, now: float) -> None:
        topology: dict[str, Any] = {} if self.level is None else {"topology": {"required": self.level}}
        first = role("first", self.replicas, self.cpu, self.gpus)
        pins = {"cpu-1": {"first": self.replicas, "second": 1}} if self.pinned else None
        given = order(
            self.run,
            first,
            role("second"),
            labels=self.labels,
            pins=pins,
            timeout=self.timeout,
            disconnect=self.disconnect,
            memberFailure={"action": "restartMember", "limit": 2},
            stopGrace="2s",
            **topology,
        )
        sim.start(given, now)


@dataclass(frozen=True)
class Tell:
    """Any other word: a method of the cluster and its first argument."""

    method: str
    about: str
    grace: float = 0.0
    generation: int = 2
    cause: StopCause = StopCause.CANCEL

    def apply(self, sim: FakeCluster, now: float) -> None:
        match self.method:
            case "stop":
                sim.stop(stop(self.about, self.grace, self.generation, self.cause), now)
            case "renew":
                sim.renew(now - self.grace, now)
            case "forget":
                sim.forget(self.about, now)
            case "finish":
                sim.finish(self.about, now)
            case "fail_node":
                sim.fail_node(self.about, now)
            case "recover_node":
                sim.recover_node(self.about, now)


starts = st.builds(
    Start,
    run_names,
    replicas=st.integers(1, 7),
    cpu=st.integers(0, 4),
    gpus=st.sampled_from([0, 0, 1]),
    labels=labels,
    pinned=st.booleans(),
    level=st.sampled_from([None, None, "zone"]),
    timeout=st.sampled_from([2.0, 30.0]),
    disconnect=st.sampled_from([None, 5.0]),
)
stops = st.builds(
    Tell,
    st.just("stop"),
    run_names,
    st.sampled_from([0.0, 1.0, 20.0]),
    st.integers(2, 4),
    st.sampled_from(list(StopCause)),
)
words = st.one_of(
    starts,
    starts,
    stops,
    st.builds(Tell, st.sampled_from(["forget", "finish"]), run_names),
    st.builds(Tell, st.just("renew"), st.just(""), st.sampled_from([0.0, 0.5])),
    st.builds(Tell, st.sampled_from(["fail_node", "recover_node"]), st.sampled_from(NODES)),
)
stories = st.lists(st.tuples(st.sampled_from([0.0, 0.0, 0.25, 1.0, 3.0, 12.0]), words), min_size=1, max_size=25)
Story = Sequence[tuple[float, Start | Tell]]


def new_cluster(seed: int = 0) -> FakeCluster:
    return cluster(
        group(
            "cpu",
            count=2,
            topology={"zone": 2},
            foreign=[{"resources": {"cpu": "2"}, "every": "7s", "lasts": "1s-6s", "chance": 0.8}],
            failures={"every": "60s", "lasts": "5s"},
        ),
        group("gpu", count=1, gpus=2, provisioning={"most": 3, "delay": "4s", "idle": "5s"}),
        seed=seed,
        defaults={"runTime": "2s"},
    )


def tell(sim: FakeCluster, story: Story, *, finely: bool = False) -> list[float]:
    """Tell a story; finely means to look at each event and between them. Returns the moments of its words."""
    now, moments = 0.0, []
    for pause, word in story:
        now += pause
        if finely:
            creep(sim, now)
        word.apply(sim, now)
        moments.append(now)
    return moments


def creep(sim: FakeCluster, now: float) -> None:
    while (at := sim.next_event_at()) <= now:
        sim.advance((sim.now + at) / 2)
        sim.advance(at)
    sim.advance((sim.now + now) / 2)
    sim.advance(now)
    sim.advance(now)


def pictures(sim: FakeCluster) -> object:
    return sorted(map(picture, sim.runs.values())), sim.report()


def check_accounts(sim: FakeCluster) -> None:
    used: dict[str, list[int]] = {}
    for run in sim.runs.values():
        check_run(run)
        for node, position, count in run.places or ():
            assert run.plan is not None
            needs = run.plan.roles[position].need.resources
            of_node = used.setdefault(node.name, [0] * len(node.pool.names))
            for place, name in enumerate(node.pool.names):
                of_node[place] += needs.get(name, 0) * count
    for pool in sim.ledger.pools:
        assert len(pool.nodes) <= pool.most
        assert {number for level in pool.levels.values() for number in level} == {
            node.number for node in pool.nodes if node.up
        }
        for node in pool.nodes:
            ours = used.get(node.name, [0] * len(pool.names))
            theirs = [sum(column) for column in zip(*(node.foreign or {}).values(), strict=True)] or [0] * len(ours)
            left = [amount - a - b for amount, a, b in zip(pool.amounts, ours, theirs, strict=True)]
            assert left == node.free
            assert min(left) >= 0, "never more than there is"


def check_run(run: FakeRun) -> None:
    if run.places is not None and run.plan is not None:
        placed = [0] * len(run.plan.roles)
        for _, position, count in run.places:
            placed[position] += count
        assert placed == [one.count for one in run.plan.roles], "a gang has all its places or none"
    if run.state.is_terminal or run.state is RunState.ACCEPTED:
        assert run.places is None
    if run.state in (RunState.RUNNING, RunState.STOPPING):
        assert run.places is not None


@given(stories)
@settings(max_examples=150, deadline=None)
def test_never_more_than_there_is_and_gangs_all_or_nothing(story: Story) -> None:
    sim, now = new_cluster(), 0.0
    for pause, word in story:
        now += pause
        while (at := sim.next_event_at()) <= now:
            sim.advance(at)
            check_accounts(sim)
        word.apply(sim, now)
        check_accounts(sim)


@given(stories)
@settings(max_examples=100, deadline=None)
def test_every_run_ends_once_and_then_stays_as_it_is(story: Story) -> None:
    sim = new_cluster()
    now = (tell(sim, story) or [0.0])[-1]
    for name in RUNS:
        sim.stop(stop(name, grace=1.0, generation=9), now)
    seen: dict[str, object] = {}
    last: dict[str, int] = {}
    for _ in range(20):
        now += 1.0
        sim.advance(now)
        for run in sim.runs.values():
            assert run.seq >= last.get(run.id, 0)
            last[run.id] = run.seq
            if run.state.is_terminal:
                verdict = (run.state, run.message, run.verdict, tuple(run.members()))
                assert seen.setdefault(run.id, verdict) == verdict
    assert set(seen) == set(sim.runs)


@given(stories, st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_the_same_seed_and_words_give_the_same_cluster(story: Story, seed: int) -> None:
    one, other = new_cluster(seed), new_cluster(seed)
    tell(one, story)
    tell(other, story)
    assert pictures(one) == pictures(other)
    assert one.next_event_at() == other.next_event_at()


@given(stories)
@settings(max_examples=150, deadline=None)
def test_one_large_step_ends_where_many_small_ones_do(story: Story) -> None:
    one, other = new_cluster(), new_cluster()
    end = tell(one, story)[-1] + 30.0
    tell(other, story, finely=True)
    one.advance(end)
    creep(other, end)
    assert pictures(one) == pictures(other)


@given(stories)
@settings(max_examples=100, deadline=None)
def test_no_member_lives_at_the_disconnect_limit(story: Story) -> None:
    sim, now = new_cluster(), 0.0
    heard = -inf
    accepted: dict[str, float] = {}
    for pause, word in [*story, (50.0, Tell("finish", "none"))]:
        now += pause
        while (at := sim.next_event_at()) <= now:
            sim.advance(at)
            for run in sim.runs.values():
                if run.disconnect is not None and sim.now >= max(heard, accepted[run.id]) + run.disconnect:
                    assert run.living(sim.now) == 0
        word.apply(sim, now)
        if isinstance(word, Tell) and word.method == "renew":
            heard = max(heard, now - word.grace)
        accepted = {name: accepted.get(name, now) for name in sim.runs}
