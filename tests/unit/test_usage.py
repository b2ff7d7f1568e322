"""What runs have used, hour by hour."""

from collections import defaultdict
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from trainmaster.protocol.prices import NANOS
from trainmaster_dispatcher.domain.prices import NO_PRICES, PricedResource, PriceHistory, Rate, Tariff
from trainmaster_dispatcher.domain.usage import (
    HOUR,
    MEMBERS,
    Resize,
    UsagePart,
    UsageSpan,
    Used,
    by_group,
    holdings,
    total_cost,
    usage_of,
)

SECOND = 10**6
CPU, GPU = PricedResource("cpu"), PricedResource("nvidia.com/gpu", "H100")


def priced(cpu: int, gpu: int = 0) -> Tariff:
    """Return a tariff with these prices of a core-hour and a GPU-hour."""
    return Tariff({CPU: Rate(cpu * NANOS, 1000), GPU: Rate(gpu * NANOS, 1)})


def test_a_run_is_charged_by_the_second_in_the_hours_that_it_spans() -> None:
    begin = 5 * HOUR + 45 * 60 * SECOND
    stretch = UsageSpan(begin, begin + 30 * 60 * SECOND, {CPU: 4000, GPU: 8}, members=4)
    used = usage_of([stretch], PriceHistory([0], [priced(40_000_000, 2_500_000_000)]))
    quarter = 15 * 60 * SECOND
    assert used == {
        UsagePart(5 * HOUR, MEMBERS): Used(4 * quarter),
        UsagePart(6 * HOUR, MEMBERS): Used(4 * quarter),
        UsagePart(5 * HOUR, CPU): Used(4000 * quarter, 40_000_000),
        UsagePart(6 * HOUR, CPU): Used(4000 * quarter, 40_000_000),
        UsagePart(5 * HOUR, GPU): Used(8 * quarter, 5_000_000_000),
        UsagePart(6 * HOUR, GPU): Used(8 * quarter, 5_000_000_000),
    }
    assert total_cost(used) == 10_080_000_000


def test_each_moment_is_charged_at_its_own_price() -> None:
    stretch = UsageSpan(0, HOUR, {CPU: 1000})
    history = PriceHistory([HOUR // 4, HOUR // 2], [priced(100), priced(1000)])
    assert total_cost(usage_of([stretch], history)) == 25 + 500


def test_without_prices_usage_is_counted_and_costs_nothing() -> None:
    assert usage_of([UsageSpan(0, SECOND, {CPU: 1})], NO_PRICES) == {UsagePart(0, CPU): Used(SECOND, 0)}


@given(
    st.lists(
        st.tuples(st.integers(0, 5 * HOUR), st.integers(0, 3 * HOUR), st.integers(0, 64_000), st.integers(0, 8)),
        max_size=5,
    ),
    st.lists(st.tuples(st.integers(0, 8 * HOUR), st.integers(0, 10**10), st.integers(0, 10**11)), max_size=4),
)
def test_hours_add_up_to_the_whole(
    stretches: list[tuple[int, int, int, int]], prices: list[tuple[int, int, int]]
) -> None:
    """Amounts exactly; money to half a billionth for each hour and resource, whatever prices did meanwhile."""
    held = [UsageSpan(begin, begin + long, {CPU: cpu, GPU: gpu}, 1) for begin, long, cpu, gpu in stretches]
    ordered = sorted({since: (cpu, gpu) for since, cpu, gpu in prices}.items())
    history = PriceHistory([since for since, _ in ordered], [priced(*price) for _, price in ordered])
    used = usage_of(held, history)
    amounts: dict[PricedResource, int] = defaultdict(int)
    for part, one in used.items():
        assert part.hour % HOUR == 0
        amounts[part.place] += one.amount
    for place, index in ((CPU, 2), (GPU, 3), (MEMBERS, None)):
        whole = sum(one[1] * (1 if index is None else one[index]) for one in stretches)
        assert amounts[place] == whole
    exact = Fraction(0)
    for begin, long, cpu, gpu in stretches:
        for since, (of_cpu, of_gpu) in ordered:
            until = min((other for other, _ in ordered if other > since), default=begin + long)
            during = max(0, min(begin + long, until) - max(begin, since))
            exact += Fraction(during, HOUR) * (Fraction(cpu * of_cpu, 1000) + gpu * of_gpu)
    assert abs(total_cost(used) - exact) <= Fraction(len(used), 2)


def test_a_run_holds_what_it_grows_into_and_what_has_not_left() -> None:
    resizes = [
        Resize(10, {"main": 5}, is_wish=True),
        Resize(20, {"main": 2}, is_wish=True),
        Resize(23, {"main": 2}, is_wish=False),
        Resize(40, {"main": 6}, is_wish=True),
        Resize(44, {"main": 4}, is_wish=False),
    ]
    assert [(begin, end, sizes["main"]) for begin, end, sizes in holdings(5, 50, {"main": 3}, resizes)] == [
        *((5, 10, 3), (10, 20, 5), (20, 23, 5), (23, 40, 2), (40, 44, 6), (44, 50, 4)),
    ]


def test_resizes_before_the_begin_and_after_the_end_take_no_time() -> None:
    resizes = [Resize(2, {"main": 5}, is_wish=True), Resize(90, {"main": 9}, is_wish=True)]
    assert list(holdings(10, 20, {"main": 3}, resizes)) == [(10, 20, {"main": 5})]
    assert list(holdings(10, 10, {"main": 3}, resizes)) == []


def test_members_are_where_they_were_last_seen() -> None:
    places = {"a": {"main": 2}, "b": {"main": 2, "head": 1}}
    assert by_group({"main": 4, "head": 1}, places) == {("a", "main"): 2, ("b", "main"): 2, ("b", "head"): 1}
    assert by_group({"main": 3}, places) == {("a", "main"): 2, ("b", "main"): 1}
    assert by_group({"main": 6}, places) == {("a", "main"): 4, ("b", "main"): 2}
    assert by_group({"main": 6}, {}) == {("", "main"): 6}
