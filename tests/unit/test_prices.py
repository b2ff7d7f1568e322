"""What things cost."""

from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from trainmaster.protocol.prices import NANOS, PriceBookSpec
from trainmaster_dispatcher.domain.prices import FREE, PricedResource, PriceHistory, Tariff, tariff_of

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
