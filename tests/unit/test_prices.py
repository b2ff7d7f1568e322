"""What things cost."""

from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from trainmaster.protocol.device_parts import part_resource
from trainmaster.protocol.prices import NANOS, PriceBookSpec
from trainmaster.protocol.quantities import parse_resources
from trainmaster_dispatcher.domain.prices import FREE, PricedResource, PriceHistory, Tariff, tariff_of
from trainmaster_dispatcher.domain.usage import UsagePart, UsageSpan, usage_of

HOUR = 3600 * 10**6
GPU = "nvidia.com/gpu"
BOOK = {
    "name": "cloud",
    "onDemand": {"cpu": "0.04", "memory": "0.005", "devices": {GPU: "1.2", f"{GPU}@product=H100": "2.5"}},
    "spot": {"cpu": "0.01", "devices": {f"{GPU}@product=H100": "0.9"}},
}


def tariff(correction: str = "1", **fields: Any) -> Tariff:
    return tariff_of(PriceBookSpec.model_validate({**BOOK, **fields}), Decimal(correction))


def cost(of: Tariff, place: PricedResource, amount: int, micros: int = HOUR) -> Decimal:
    rate = of.rate(place)
    return Decimal(0) if rate is None else Decimal(rate.weight(amount, micros).nanos) / NANOS


@pytest.mark.parametrize(
    ("place", "amount", "expected"),
    [
        (PricedResource("cpu"), 2500, "0.1"),
        (PricedResource("memory"), 3 * 2**30, "0.015"),
        (PricedResource(GPU, "H100"), 2, "5"),
        (PricedResource(GPU, "A100"), 2, "2.4"),
        (PricedResource(GPU), 1, "1.2"),
        (PricedResource("cpu", "", spot=True), 1000, "0.01"),
        (PricedResource(GPU, "H100", spot=True), 1, "0.9"),
        (PricedResource("memory", "", spot=True), 2**30, "0.005"),
        (PricedResource(GPU, "A100", spot=True), 1, "1.2"),
        (PricedResource("amd.com/gpu"), 8, "0"),
        (PricedResource("ephemeral-storage"), 2**40, "0"),
    ],
)
def test_an_hour_costs_what_the_book_says(place: PricedResource, amount: int, expected: str) -> None:
    assert cost(tariff(), place, amount) == Decimal(expected)


INSTANCES = {
    "p5.48xlarge": {
        "onDemand": "98.32",
        "spot": "40",
        "resources": {"cpu": "192", "memory": "2Ti", GPU: "8", "vpc.amazonaws.com/efa": "32"},
    },
    "m7i.large": {"onDemand": "0.1", "resources": {"cpu": "2", "memory": "8Gi"}},
}


def whole_node(of: Tariff, instance: str, *, spot: bool = False) -> Decimal:
    """Return the cost of all that a node of a type offers, for an hour."""
    amounts = parse_resources(INSTANCES[instance]["resources"])  # type: ignore[arg-type]
    places = {name: PricedResource(name, "H100" if name == GPU else "", spot, instance) for name in amounts}
    return sum((cost(of, places[name], amount) for name, amount in amounts.items()), Decimal(0))


class TestInstances:
    def test_a_whole_node_costs_what_its_type_costs(self) -> None:
        of = tariff(instances=INSTANCES)
        assert abs(whole_node(of, "p5.48xlarge") - Decimal("98.32")) < Decimal("1e-7")
        assert abs(whole_node(of, "p5.48xlarge", spot=True) - 40) < Decimal("1e-7")
        assert abs(whole_node(of, "m7i.large") - Decimal("0.1")) < Decimal("1e-7")
        assert abs(whole_node(of, "m7i.large", spot=True) - Decimal("0.1")) < Decimal("1e-7")
        other = tariff("1.1", instances=INSTANCES, exchangeRate="0.5")
        assert abs(whole_node(other, "p5.48xlarge") - Decimal("98.32") * Decimal("0.55")) < Decimal("1e-7")

    def test_resources_share_it_in_proportion_to_their_ordinary_prices(self) -> None:
        of = tariff(instances=INSTANCES)
        core = cost(of, PricedResource("cpu", "", instance="m7i.large"), 1000)
        gib = cost(of, PricedResource("memory", "", instance="m7i.large"), 2**30)
        assert abs(core / gib - Decimal("0.04") / Decimal("0.005")) < Decimal("1e-5")
        assert abs(2 * core + 8 * gib - Decimal("0.1")) < Decimal("1e-7")

    def test_other_types_and_what_a_type_does_not_name_have_ordinary_prices(self) -> None:
        of = tariff(instances=INSTANCES)
        assert cost(of, PricedResource("cpu", "", instance="m7i.xlarge"), 1000) == Decimal("0.04")
        assert cost(of, PricedResource(GPU, "H100", instance="m7i.large"), 1) == Decimal("2.5")

    def test_half_a_gpu_costs_half(self) -> None:
        of = tariff(instances=INSTANCES)
        whole = cost(of, PricedResource(GPU, "H100", instance="p5.48xlarge"), 1)
        half = cost(of, PricedResource(part_resource(GPU), "H100", instance="p5.48xlarge"), 500)
        assert abs(whole - 2 * half) < Decimal("1e-8")

    def test_types_are_counted_together(self) -> None:
        tariffs = PriceHistory([0], [tariff(instances=INSTANCES)])
        amounts = {PricedResource("cpu", "", instance="m7i.large"): 2000, PricedResource("cpu"): 1000}
        found = usage_of([UsageSpan(0, HOUR, amounts)], tariffs)
        used = found[UsagePart(0, PricedResource("cpu"))]
        assert (used.amount, len(found)) == (3000 * HOUR, 1)
        assert used.cost == 40_000_000 + Decimal(cost(tariffs.tariffs[0], next(iter(amounts)), 2000)) * NANOS


def test_other_currencies_and_corrections_are_factors() -> None:
    assert cost(tariff("1.1", exchangeRate="0.5"), PricedResource("cpu"), 1000) == Decimal("0.022")


def test_a_second_is_not_rounded_to_cents() -> None:
    assert cost(tariff(), PricedResource("cpu"), 1000, 10**6) == Decimal("0.000011111")
    assert cost(tariff(), PricedResource("cpu"), 1, 1) == 0


def test_a_history_is_cut_where_prices_change() -> None:
    first, second = tariff(), tariff("2")
    history = PriceHistory([10, 20], [first, second])
    assert list(history.pieces(5, 30)) == [(5, 10, FREE), (10, 20, first), (20, 30, second)]
    assert list(history.pieces(12, 15)) == [(12, 15, first)]
    assert list(history.pieces(20, 20)) == []
    assert [history.at(moment) for moment in (9, 10, 19, 20)] == [FREE, first, first, second]


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"onDemand": {"cpu": "-1"}}, "onDemand.cpu"),
        ({"onDemand": {"cpu": "0.0000000001"}}, "onDemand.cpu"),
        ({"onDemand": {"cpu": "NaN"}}, "onDemand.cpu"),
        ({"onDemand": {"gpu": "1"}}, "onDemand.gpu"),
        ({"onDemand": {"devices": {"cpu": "1"}}}, "onDemand.devices.cpu.[key]"),
        ({"onDemand": {"devices": {f"{GPU}@kind=public": "1"}}}, f"onDemand.devices.{GPU}@kind=public.[key]"),
        ({"exchangeRate": 0}, "exchangeRate"),
        ({"instances": {"m": {"resources": {"cpu": "1"}}}}, "instances.m"),
        ({"instances": {"m": {"onDemand": "1", "resources": {"cpu": "0"}}}}, "instances.m.resources"),
        ({"instances": {"m": {"onDemand": "1", "resources": {}}}}, "instances.m.resources"),
        ({"instances": {"m": {"onDemand": "1", "resources": {"example.com/fpga": "1"}}}}, ""),
    ],
)
def test_a_book_with_a_mistake_is_refused_where_the_mistake_is(fields: dict[str, Any], where: str) -> None:
    with pytest.raises(ValidationError) as refused:
        PriceBookSpec.model_validate({**BOOK, **fields})
    assert ".".join(str(part) for part in refused.value.errors()[0]["loc"]) == where


def test_what_yaml_takes_for_a_float_keeps_its_digits() -> None:
    book = PriceBookSpec.model_validate({**BOOK, "onDemand": {"cpu": 0.1}})
    assert book.on_demand.cpu == Decimal("0.1")
    assert book.model_dump(mode="json")["on_demand"]["cpu"] == "0.1"
