"""The index of nodes: always that of the objects as they are, and a few nodes of each sort are enough to place one role."""

import random
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_capacity_inventory import inventory, node, pod
from tests.unit.test_node_plan import facts
from tests.unit.test_numa_ledger import topology
from trainmaster.cluster_model.packing import Assignment, PackingShortfall, place
from trainmaster.protocol.quantities import Resources
from trainmaster_agent.capacity.inventory import Inventory
from trainmaster_agent.runtime.kubernetes.node_capacity import NodeCapacity

RUN, OTHER = "bert-7k2p9xq-r1", "gpt-7k2p9xq-r1"
PODS: dict[str, dict[str, object]] = {"worker": {}}


def shown(made: Inventory) -> list[tuple[str | None, Any]]:
    made.report()
    return sorted(
        ((group, one) for group, nodes in made.sorts() for one in nodes.values()), key=lambda pair: pair[1].name
    )


@given(st.integers(0, 100_000))
def test_is_the_same_whatever_happened_before(seed: int) -> None:
    chance = random.Random(seed)
    made = inventory()
    objects: dict[str, dict[str, Any]] = {}
    for _ in range(30):
        name = f"n{chance.randrange(4)}"
        key = f"p{chance.randrange(6)}"
        match chance.choice(("node", "node", "node gone", "pod", "pod", "pod gone", "zones", "look", "report")):
            case "node":
                labels = {"topology.kubernetes.io/zone": chance.choice("ab")}
                objects[name] = node(
                    name, ready=chance.random() > 0.2, labels=labels, unschedulable=chance.random() > 0.8
                )
                made.node_put(objects[name])
            case "node gone":
                objects.pop(name, None)
                made.node_drop(name)
            case "pod":
                objects[key] = pod(key, on=name, own=chance.random() > 0.5, cpu=str(chance.randint(1, 3)))
                made.pod_put(objects[key])
            case "pod gone":
                objects.pop(key, None)
                made.pod_drop(f"team/{key}")
            case "zones":
                objects[f"zones {name}"] = topology(name, {"cpu": (4, chance.randint(0, 4))}, {"cpu": (4, 4)})
                made.numa_put(objects[f"zones {name}"])
            case "look":
                assert len(list(made.standing())) == made.node_count
            case "report":
                made.report()
    fresh = inventory(*(one for one in objects.values() if "spec" in one))
    for one in objects.values():
        if "spec" not in one:
            made.numa_put(one)  # pods that the last report of zones did not have count in each of them
            fresh.numa_put(one)
    assert shown(made) == shown(fresh)


def forms(places: Assignment | PackingShortfall, free: Mapping[str, Resources]) -> list[tuple[Any, ...]] | None:
    """Return what the chosen nodes have free, and the members of each: names do not matter."""
    if isinstance(places, PackingShortfall):
        return None
    return sorted(((sorted(free[name].items()), roles["worker"]) for name, roles in places.items()), key=str)


@given(st.integers(0, 100_000), st.integers(1, 5), st.integers(1, 4))
def test_a_few_nodes_of_each_sort_give_the_packing_of_all(seed: int, members: int, cpu: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.choice(("2", "4", "8")) for _ in range(chance.randint(1, 12))]
    made = inventory(
        *(
            node(f"n{number}", allocatable={"cpu": size}, labels={"disk": chance.choice("xy")})
            for number, size in enumerate(sizes)
        ),
        *(
            pod(f"p{number}", on=f"n{number}", own=True, cpu="1")
            for number in range(len(sizes))
            if chance.random() > 0.6
        ),
    )
    pods = {"worker": {"nodeSelector": {"disk": "x"}}} if chance.random() > 0.5 else PODS
    wanted, capacity = facts(members, str(cpu)), NodeCapacity(made)
    if chance.random() > 0.5:
        capacity.keep(OTHER, facts(1, "1"), {f"n{chance.randrange(len(sizes))}": {"worker": 1}})
    nodes, free = capacity._ledger(RUN)
    whole = place(nodes, free, capacity._needs(wanted, {"worker": members}, pods))
    few = capacity.find(RUN, wanted, {"worker": members}, pods, None)
    assert forms(few, free) == forms(whole, free)
    for name in few if isinstance(few, dict) and pods is not PODS else ():
        usable = made.usable(name)
        assert usable is not None
        assert usable.labels["disk"] == "x"
