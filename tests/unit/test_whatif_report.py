"""The report of a simulation."""

import re
from xml.etree import ElementTree

from tests.unit.whatif_building import declared, machine, ran, table
from trainmaster.protocol.prices import PriceBookSpec
from trainmaster.protocol.tenants import ClusterSpec, QueueSpec
from trainmaster_dispatcher.whatif.figures import figures_of
from trainmaster_dispatcher.whatif.report import Case, page
from trainmaster_dispatcher.whatif.values import Figures, from_data, to_data


def figures(price: str = "0") -> Figures:
    book = PriceBookSpec.model_validate({"name": "book", "onDemand": {"cpu": price}})
    cluster = ClusterSpec(name="machine", price_book="book")
    return figures_of(ran(table("0,100,4", "0,50,4"), machine(), of=declared(clusters=[cluster], books=[book])))


def charts(text: str) -> list[ElementTree.Element]:
    found = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    return [ElementTree.fromstring(one) for one in found]  # noqa: S314 - the report is our own


def test_it_needs_nothing_from_elsewhere() -> None:
    text = page("Title", "log.swf", [Case("", figures())], "EUR")
    assert not re.search(r"<script|<link|<img|https?:|url\(|@import", text)


def test_a_single_simulation_tells_waits_and_clusters() -> None:
    text = page("Title", "log.swf", [Case("", figures("36"))], "EUR")
    assert "2 succeeded; over after 2m30s; 0 preempted; fairness between queues 1.000; cost 6.00 EUR." in text
    (bars,) = charts(text)
    assert [one.text for one in bars.iter("text")] == ["machine, cpu", "100.0%"]


def test_several_are_compared_and_cost_is_drawn_against_wait() -> None:
    cases = [Case("cheap", figures("36")), Case("dear", figures("72"))]
    text = page("Title", "log.swf", cases, "EUR")
    trade, waits, *_ = charts(text)
    dots = [(float(one.attrib["cx"]), float(one.attrib["cy"])) for one in trade.iter("circle")]
    assert dots[0][0] < dots[1][0], "what costs more is further to the right"
    assert dots[0][1] == dots[1][1], "both wait alike"
    widths = [float(one.attrib["width"]) for one in waits.iter("rect")]
    assert len(widths) == 4
    assert "Cost against wait" not in page("Title", "log.swf", [Case("a", figures()), Case("b", figures())], "EUR")


def test_queues_are_compared_where_there_are_several() -> None:
    jobs = table("0,100,4,left", "0,100,4,right", "1,100,400,right", heading="submit,run,members,queue")
    of = declared(QueueSpec(path="left"), QueueSpec(path="right"))
    found = figures_of(ran(jobs, machine(), of=of))
    assert {path: (one.started, one.unplaced, one.preempted) for path, one in found.queues.items()} == {
        "left": (1, 0, 0),
        "right": (1, 1, 0),
    }
    assert found.queues["left"].share == found.queues["right"].share > 0
    assert from_data(to_data(found)) == found
    old = {key: value for key, value in to_data(found).items() if key != "queues"}
    assert not from_data(old).queues
    text = page("Title", "log.swf", [Case("present", found), Case("edited", found)], "EUR")
    assert text.count("<td>left</td>") == 4, "two lines of the comparison, and one of the waits of each case"
    assert "never started</th><th>preempted</th><th>share" in text


def test_it_tells_how_far_forecasts_of_waits_held() -> None:
    every_job_needs_all = table(*(f"{50 * number},100,4" for number in range(100)), limits="exact")
    found = figures_of(ran(every_job_needs_all, machine()))
    assert found.forecasts.keys() == {"main"}
    assert found.all_forecasts.jobs == found.all_forecasts.within_most > 50, "the wait is exactly the drain time"
    text = page("Title", "log.swf", [Case("", found)], "EUR")
    assert f"<td>all</td><td>{found.all_forecasts.jobs}</td><td>100%</td><td>100%</td>" in text
    assert from_data(to_data(found)) == found
    assert not from_data({key: value for key, value in to_data(found).items() if key != "forecasts"}).forecasts
    assert "forecast of" not in page("Title", "log.swf", [Case("", figures())], "EUR"), "too few have started"


def test_names_cannot_break_the_page() -> None:
    text = page("<b>", "x<script>", [Case('"><script>', figures()), Case("&", figures())], "EUR")
    assert "<script>" not in text
    assert charts(text)
