"""The benchmark of packing: what it draws, and that it counts what the fit misses."""

import random

import pytest

from bench import packing
from bench.packing import CORE, GPU, drawn, found, is_tight, members_of, packs, run
from trainmaster.protocol.quantities import Resources
from trainmaster_dispatcher.domain.shapes import RoleShape, Shape


def test_every_way_is_tried() -> None:
    two, three = {"cpu": 2}, {"cpu": 3}
    assert packs([three, three, two, two], [{"cpu": 5}, {"cpu": 5}])
    assert packs([two, two, three, three], [{"cpu": 5}, {"cpu": 5}])
    assert not packs([three, three, three], [{"cpu": 5}, {"cpu": 5}])


def test_members_are_those_of_the_gang() -> None:
    shape, _ = drawn(random.Random(1), 3)
    members = list(members_of(shape))
    assert len(members) == shape.least_members
    assert sum(one["cpu"] for one in members) == sum(role.replicas * role.needs["cpu"] for role in shape.roles)


def test_tight_is_what_takes_most_of_anything() -> None:
    shape = Shape((RoleShape("a", 3, 3, {"cpu": CORE, GPU: 1}),), 3)
    assert is_tight(shape, [{"cpu": 4 * CORE, GPU: 8}])
    assert is_tight(shape, [{"cpu": 40 * CORE, GPU: 4}])
    assert not is_tight(shape, [{"cpu": 40 * CORE, GPU: 8}])


def test_members_alike_are_never_missed_and_nothing_is_found_that_cannot_be() -> None:
    figures = run(200, seed=7)
    assert figures["wrong"] == 0
    assert figures["roles_1"]["possible"] > 50
    assert figures["roles_1"]["missed"] == 0
    assert figures == run(200, seed=7)


def test_a_fit_that_misses_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_shape: Shape, _free: list[Resources]) -> bool:
        return False

    assert found(Shape((RoleShape("a", 1, 1, {"cpu": CORE}),), 1), [{"cpu": CORE, GPU: 0}])
    monkeypatch.setattr(packing, "found", never)
    figures = run(50, seed=7)
    assert figures["roles_2"]["missed"] == figures["roles_2"]["possible"] > 0
    assert figures["roles_2"]["miss_share"] == 1.0
