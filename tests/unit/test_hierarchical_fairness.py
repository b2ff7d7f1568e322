"""Hierarchical dominant-resource fairness: queues below one parent that need different resources.

The trees are those by which A. Bhattacharya et al. ("Hierarchical Scheduling for Diverse Datacenter Workloads", SoCC 2013) show how
dominant shares that are just added up starve such queues.
"""

import os
import random
from collections import Counter, defaultdict

import pytest

from tests.unit.building import NOW, StateBuilder, nodes, simple
from trainmaster_dispatcher.scheduling.queries.queue_position import place_of, quotas_of

KINDS = {"cpu": simple(cpu=1), "gpu": simple(cpu=0, gpu=1), "both": simple(cpu=4, gpu=1)}


def shares_over_time(
    leaves: dict[str, str],
    *,
    cores: int = 12,
    gpus: int = 12,
    rounds: int = 400,
    weights: dict[str, float] | None = None,
    seed: int = 1,
) -> dict[str, float]:
    """Return how many jobs of each leaf queue run on average once things have settled.

    Every queue always has more jobs that wait. In each round one run ends, and a cycle decides. ``leaves``: by path, the kind of
    its jobs.
    """
    chance, builder = random.Random(seed), StateBuilder().cluster("c", nodes(1, cpu=cores, gpu=gpus))
    every = {"/".join(path.split("/")[:depth]) for path in leaves for depth in range(1, path.count("/") + 2)}
    for path in sorted(every):
        builder.queue(path, weight=(weights or {}).get(path, 1.0))
    running: dict[str, str] = {}
    number, sums = 0, Counter[str]()
    for step in range(rounds):
        if running:
            ended = chance.choice(sorted(running))
            builder.ended(ended)
            del running[ended]
        for path, kind in leaves.items():
            waiting = sum(len(keys) for keys in builder.state.waiting.get(builder.queues[path], {}).values())
            for _ in range(max(cores, gpus) + 1 - waiting):
                number += 1
                builder.job(f"{path.replace('/', '-')}.{number}", KINDS[kind], queue=path)
        outcome = builder.applied()
        for name in outcome.started:
            running[name] = name.partition(".")[0].replace("-", "/")
        if step >= rounds // 4:
            sums.update(running.values())
    return {path: round(sums[path] / (rounds - rounds // 4), 2) for path in leaves}


def test_a_queue_is_not_starved_by_a_sibling_that_has_all_of_another_resource() -> None:
    found = shares_over_time({"n1": "gpu", "n2/cpu": "cpu", "n2/gpu": "gpu"})
    assert found["n2/cpu"] == pytest.approx(12, abs=0.5), "nobody else wants cores"
    assert found["n1"] == pytest.approx(6, abs=0.5)
    assert found["n2/gpu"] == pytest.approx(6, abs=0.5)


def test_a_saturated_sibling_does_not_give_a_queue_more_than_its_part_of_another_resource() -> None:
    found = shares_over_time({"n1": "cpu", "n2": "cpu", "n3/cpu": "cpu", "n3/gpu": "gpu", "n4": "gpu"})
    for path in ("n1", "n2", "n3/cpu"):
        assert found[path] == pytest.approx(4, abs=0.5)
    for path in ("n3/gpu", "n4"):
        assert found[path] == pytest.approx(6, abs=0.5)


def test_jobs_on_gpus_that_need_cores_as_well_are_not_starved_by_a_sibling_with_many_cores() -> None:
    # 6 GPUs, 60 cores: n2/cpu may have what n1 and n2/gpu leave of the cores, which is 36 of them.
    found = shares_over_time({"n1": "both", "n2/cpu": "cpu", "n2/gpu": "both"}, cores=60, gpus=6)
    assert found["n1"] == pytest.approx(3, abs=0.5)
    assert found["n2/gpu"] == pytest.approx(3, abs=0.5)
    assert found["n2/cpu"] == pytest.approx(36, abs=3)


def test_a_sibling_that_has_much_of_the_same_resource_counts_for_the_queue() -> None:
    """Shares that are scaled to the lowest of the children would give ``n2`` more than half."""
    builder = StateBuilder().cluster("c", nodes(1, cpu=12)).queue("n1").queue("n2").queue("n2/a").queue("n2/b")
    for number in range(6):
        builder.run(f"old{number}", on="c", queue="n2/a")
    builder.jobs(12, "one", queue="n1").jobs(12, "two", queue="n2/b")
    started = Counter(name[:3] for name in builder.cycle().started)
    assert started == Counter(one=6)


def ideal(leaves: dict[str, str], weights: dict[str, float], amount: float) -> dict[str, float]:
    """Return the amount of each leaf: each resource is divided by weight, level by level, between those below which jobs need it."""
    found: dict[str, float] = {}

    def divide(above: str, wanting: list[str], amount: float) -> None:
        children = defaultdict(list)
        for path in wanting:
            rest = path.removeprefix(above + "/") if above else path
            children[f"{above}/{rest.split('/')[0]}".removeprefix("/")].append(path)
        whole = sum(weights[child] for child in children)
        for child, below in children.items():
            part = amount * weights[child] / whole
            if below == [child]:
                found[child] = part
            else:
                divide(child, below, part)

    for kind in set(leaves.values()):
        divide("", [path for path, one in leaves.items() if one == kind], amount)
    return found


@pytest.mark.parametrize("seed", range(40 if os.environ.get("TRAINMASTER_DEEP") else 7))
def test_each_resource_is_divided_by_the_tree_between_the_queues_that_need_it(seed: int) -> None:
    chance = random.Random(f"tree {seed}")
    paths = set[str]()
    for root in range(chance.randint(2, 3)):
        for child in range(chance.randint(1, 3)):
            below = [f"r{root}/c{child}/g{number}" for number in range(chance.choice((0, 0, 2)))]
            paths |= set(below) if below else {f"r{root}/c{child}"}
    leaves = {path: chance.choice(("cpu", "gpu")) for path in sorted(paths)}
    every = {"/".join(path.split("/")[:depth]) for path in leaves for depth in range(1, 4)}
    weights = {path: float(chance.choice((1, 1, 2))) for path in sorted(every)}
    found = shares_over_time(leaves, cores=24, gpus=24, rounds=500, weights=weights, seed=seed)
    wanted = ideal(leaves, weights, 24.0)
    for path, amount in wanted.items():
        assert found[path] == pytest.approx(amount, abs=1.25), (path, leaves, weights, found, wanted)


def test_a_position_names_the_resource_by_which_a_queue_is_compared() -> None:
    builder = (
        StateBuilder().cluster("c", nodes(1, cpu=12, gpu=12)).queue("n1").queue("n2").queue("n2/cpu").queue("n2/gpu")
    )
    for number in range(12):
        builder.run(f"c{number}", on="c", queue="n2/cpu")
    for number in range(6):
        builder.run(f"g{number}", KINDS["gpu"], on="c", queue="n1")
    builder.job("mine", KINDS["gpu"], queue="n2/gpu").job("other", KINDS["gpu"], queue="n1")
    place = place_of(builder.state, quotas_of(builder.engine, NOW), builder.ids["mine"], NOW)
    assert place is not None
    parent, own = place.factors.queues
    assert (parent.queue, parent.resource, parent.share, parent.rank) == ("n2", "nvidia.com/gpu", 0.0, 1)
    assert (own.queue, own.resource, own.share) == ("n2/gpu", None, 0.0)
