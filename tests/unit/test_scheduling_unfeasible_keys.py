"""What no node has enough of is told at once, in the words that a look at each cluster comes to."""

import os
import random
from collections import Counter
from typing import Any

import pytest

from tests.unit.building import GPU, Outcome, StateBuilder, gang, nodes, role, simple
from trainmaster.protocol.agent import Taint
from trainmaster.protocol.jobs import Toleration
from trainmaster.protocol.reasons import Token
from trainmaster.protocol.states import ClusterKind
from trainmaster_dispatcher.domain.shapes import Shape
from trainmaster_dispatcher.scheduling.selection.unfeasible_keys import CachedRefusal, RefusalCache
from trainmaster_dispatcher.scheduling.state.plan import Plan

EXAMPLES, BATCHES = (600, 6) if os.environ.get("TRAINMASTER_DEEP") else (160, 2)
GPU_TAINT = Taint(key=GPU, value="present", effect="NoSchedule")
SHAPES: tuple[Shape, ...] = (
    *(simple(cpu=cpu, memory=f"{memory}Gi") for cpu in (1, 2, 5) for memory in (1, 3, 9)),
    *(simple(size, cpu=1, memory="1Gi") for size in (2, 3, 9)),
    *(gang(role(1, cpu=1, gpu=gpu, tolerations=(Toleration(key=GPU, operator="Exists"),))) for gpu in (1, 2)),
    gang(role(1, cpu=1, node_selector=(("disk", "ssd"),))),
    gang(role(1, cpu=2, node_selector=(("disk", "ssd"),))),
    gang(role(2, cpu=2), required_level="rack"),
    gang(role(2, cpu=2), preferred_level="rack"),
    gang(role(1, "a", cpu=2), role(1, "b", cpu=3)),
    gang(role(1, cpu=2), clusters=("c1",)),
    gang(role(2, cpu=1, max_per_node=1)),
)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Counter[bool]:
    """The number of times that the refusal was cached, and that it was not."""
    times: Counter[bool] = Counter()
    blocks = RefusalCache.blocks

    def counted(self: RefusalCache, key: Any, size: Any) -> CachedRefusal | None:
        refusal = blocks(self, key, size)
        times[refusal is not None] += 1
        return refusal

    monkeypatch.setattr(RefusalCache, "blocks", counted)
    return times


def some_cluster(world: StateBuilder, chance: random.Random, number: int) -> None:
    """Add a cluster of a few groups of nodes, which may be out of contact, cordoned or of another kind."""
    groups = []
    for one in range(chance.randint(1, 3)):
        gpu = chance.choice([0, 0, 2])
        groups.append(
            nodes(
                chance.randint(1, 3),
                f"g{one}",
                labels={"disk": chance.choice(["ssd", "hdd"])},
                taints=(GPU_TAINT,) if gpu else (),
                at=(("rack", f"r{chance.randint(1, 2)}"),),
                cpu=chance.randint(1, 5),
                memory=f"{chance.randint(1, 9)}Gi",
                gpu=gpu,
            )
        )
    kind = chance.choice([ClusterKind.PRIVATE, ClusterKind.PRIVATE, ClusterKind.EDGE, ClusterKind.PUBLIC])
    lease = chance.choice([100.0, 100.0, 100.0, -1.0])
    world.cluster(f"c{number}", *groups, kind=kind, cordoned=chance.random() < 0.1, lease=lease)


def some_world(chance: random.Random) -> StateBuilder:
    world = StateBuilder()
    for number in range(chance.randint(1, 4)):
        some_cluster(world, chance, number)
    return world


def more_happens(world: StateBuilder, chance: random.Random, cycle: int) -> None:
    """Change clusters, and add runs and jobs."""
    if cycle and chance.random() < 0.4:
        some_cluster(world, chance, chance.randrange(len(world.clusters) + 1))
    for number in range(chance.randint(0, 12)):
        on, taken = chance.choice(sorted(world.clusters)), chance.choice([1, 1, 2, "500m"])
        world.run(
            f"r{cycle}-{number}",
            simple(cpu=taken, memory=f"{chance.randint(1, 3)}Gi"),
            on=on,
            placement={f"g{chance.randint(0, 1)}": {"worker": 1}},
        )
    for number in range(chance.randint(1, 10)):
        back = chance.random() < 0.1
        world.job(
            f"j{cycle}-{number}",
            chance.choice(SHAPES),
            of=chance.choice(["normal", "high"]),
            returned_by=("c0",) if back else (),
        )


def plans(seed: int) -> list[Plan]:
    """Return the plans of a few cycles of one world, each applied before the next."""
    chance = random.Random(seed)
    world, out = some_world(chance), []
    for cycle in range(4):
        more_happens(world, chance, cycle)
        out.append(world.applied().plan)
    return out


@pytest.mark.parametrize("batch", range(BATCHES))
def test_they_say_what_a_look_at_each_cluster_says(
    batch: int, found: Counter[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(batch, EXAMPLES, BATCHES):
        quick = plans(seed)
        with monkeypatch.context() as patched:
            patched.setattr(RefusalCache, "blocks", lambda *_: None)
            slow = plans(seed)
        assert [one.reasons for one in quick] == [one.reasons for one in slow], f"seed {seed}"
        assert quick == slow, f"seed {seed}"
    assert found[True] > 100, "nothing was shown"


def full(count: int) -> StateBuilder:
    """Return clusters of nodes of 4 CPU and 8 GiB with 1 CPU and 7 GiB left."""
    world = StateBuilder()
    for number in range(count):
        world.cluster(f"c{number}", nodes(2, cpu=4, memory="8Gi"))
        for one in range(2):
            world.run(
                f"r{number}-{one}", simple(cpu=3, memory="1Gi"), on=f"c{number}", placement={"nodes": {"worker": 1}}
            )
    return world


def reason_of(outcome: Outcome, job: str) -> tuple[Token, list[str]]:
    reason = outcome.reason(job)
    return reason.token, [one.sentence for one in reason.verdicts]


def test_who_needs_as_much_is_told_the_same_without_a_look(found: Counter[bool]) -> None:
    world = full(3)
    world.job("first", simple(cpu=2, memory="1Gi"))
    for number in range(5):
        world.job(f"j{number}", simple(cpu=2, memory=f"{number + 2}Gi"))
    outcome = world.cycle()
    assert found == {False: 1, True: 5}
    lack = "needs 2 cpu on one node, the best node has 1"
    assert reason_of(outcome, "j4") == (Token.INSUFFICIENT_CAPACITY, [lack] * 3)


def test_a_start_in_between_makes_it_doubtful(found: Counter[bool]) -> None:
    world = full(2).job("first", simple(cpu=2, memory="1Gi")).job("starts", simple(cpu=1, memory="1Gi"))
    outcome = world.job("last", simple(cpu=2, memory="2Gi")).cycle()
    assert outcome.started == ["starts"]
    assert found == {False: 3}
    assert outcome.reason("last").token is Token.INSUFFICIENT_CAPACITY


def test_who_would_fit_on_no_empty_cluster_is_told_so(found: Counter[bool]) -> None:
    world = full(2).job("first", simple(cpu=2, memory="1Gi")).job("large", simple(cpu=5, memory="1Gi"))
    assert world.cycle().reason("large").token is Token.TOO_LARGE
    assert found == {False: 2}


def test_what_is_short_is_told_anew_once_there_is_more(found: Counter[bool]) -> None:
    world = full(1).job("a", simple(cpu=2, memory="1Gi")).job("b", simple(cpu=2, memory="2Gi"))
    assert world.cycle().verdict("b", "c0").sentence == "needs 2 cpu on one node, the best node has 1"
    world.ended("r0-0").run("half", simple(cpu="2500m", memory="1Gi"), on="c0", placement={"nodes": {"worker": 1}})
    assert world.cycle().verdict("b", "c0").sentence == "needs 2 cpu on one node, the best node has 1.5"
    assert found[True] == 2
