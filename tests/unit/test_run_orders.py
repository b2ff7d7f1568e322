"""What a run is told to do: how it is stored, how the release before read it, and the specification that its agent gets."""

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster_dispatcher.domain.burst_policies import Bounds
from trainmaster_dispatcher.domain.run_orders import (
    NO_ORDERS,
    BindingTerm,
    BurstTerms,
    NarrowedDevice,
    RunOrders,
    UnreadableOrdersError,
    read_orders,
)
from trainmaster_dispatcher.domain.spec_rendering import apply_orders, render
from trainmaster_dispatcher.scheduling.state.flavors import Product
from trainmaster_dispatcher.scheduling.state.jobs import WaitingJob
from trainmaster_dispatcher.scheduling.state.plan import Granted, Start
from trainmaster_dispatcher.scheduling.state.writes import orders_of

SENT: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "golden" / "sent_specs.json").read_text())
"""Of jobs of all kinds: the stored specification, the decision that release 0023 wrote, and the bytes that it sent for them."""
NARROWED = NarrowedDevice(resource="nvidia.com/gpu", selector={"nvidia.com/gpu.product": "H100"})
SPOT = BindingTerm(key="trainmaster.dev/spot", operator="In", values=("true",))
FULL = RunOrders(narrowed=NARROWED, awaits_seconds=12.5, burst=BurstTerms(limit_seconds=60.0, binding=(SPOT,)))
STORED = {
    "version": 1,
    "narrowed": {"resource": "nvidia.com/gpu", "selector": {"nvidia.com/gpu.product": "H100"}},
    "awaitsSeconds": 12.5,
    "burst": {
        "limitSeconds": 60.0,
        "binding": [{"key": "trainmaster.dev/spot", "operator": "In", "values": ["true"]}],
    },
}


def read(data: Any) -> RunOrders:
    return read_orders(orjson.dumps(data).decode())


def of_decision(decision: dict[str, Any]) -> RunOrders:
    """Return the orders of a run that an earlier release leased, as the store gives them."""
    keys = ("narrowed", "awaitsSeconds", "burst")
    return read({"version": 0} | {key: decision[key] for key in keys if key in decision})


# What is sent


@pytest.mark.parametrize("case", SENT.values(), ids=SENT)
def test_agents_get_the_bytes_that_the_release_before_sent(case: dict[str, Any]) -> None:
    orders = of_decision(case["decision"])
    for form in (orders, read(orders.stored())):
        assert render(case["stored"], form, case["parameters"], set(case["declared"])).decode() == case["sent"]


@pytest.mark.parametrize("case", SENT.values(), ids=SENT)
def test_the_release_before_finds_in_the_decision_what_it_would_have_written(case: dict[str, Any]) -> None:
    decision = case["decision"]
    wanted = {key: decision[key] for key in ("narrowed", "awaitsSeconds") if key in decision}
    if "burst" in decision:
        wanted["burst"] = {key: decision["burst"][key] for key in ("limitSeconds", "binding")}
    assert of_decision(decision).for_earlier_release() == wanted


def test_a_specification_in_wire_form_stays_as_it_was() -> None:
    spec = {
        "name": "a",
        "placement": {"datasets": ["c4"]},
        "roles": [{"name": "main", "template": {"resources": {"nvidia.com/gpu": "1"}, "args": ["${seed}"]}}],
    }
    before = orjson.dumps(spec)
    changed = apply_orders(spec, FULL, {"seed": 1}, {"c4"})
    assert orjson.dumps(spec) == before
    template = changed["roles"][0]["template"]
    assert (template["args"], template["nodeSelector"]) == (["1"], {"nvidia.com/gpu.product": "H100"})
    assert template["nodeAffinity"] == [{"key": "trainmaster.dev/spot", "operator": "In", "values": ["true"]}]
    assert (changed["timeLimit"], changed["placement"]) == ("60.000s", {"datasets": []})


# What is stored


def test_orders_are_stored_in_one_form() -> None:
    assert FULL.stored() == STORED
    assert NO_ORDERS.stored() == RunOrders().stored() == {"version": 1}


_TEXTS = st.text(max_size=20)
_SECONDS = st.floats(0, 1e6)
_TERMS = st.tuples(_TEXTS, _TEXTS, st.lists(_TEXTS, max_size=3).map(tuple)).map(
    lambda term: BindingTerm(key=term[0], operator=term[1], values=term[2])
)
_BURSTS = st.tuples(_SECONDS, st.lists(_TERMS, max_size=3).map(tuple)).map(
    lambda burst: BurstTerms(limit_seconds=burst[0], binding=burst[1])
)
_NARROWED = st.tuples(_TEXTS, st.dictionaries(_TEXTS, _TEXTS, max_size=3)).map(
    lambda device: NarrowedDevice(resource=device[0], selector=device[1])
)
_ORDERS = st.tuples(st.none() | _NARROWED, _SECONDS, st.none() | _BURSTS).map(
    lambda orders: RunOrders(narrowed=orders[0], awaits_seconds=orders[1], burst=orders[2])
)


@given(_ORDERS)
def test_what_is_stored_is_read_as_it_was_by_this_release_and_by_the_one_before(orders: RunOrders) -> None:
    assert read(orders.stored()) == orders
    assert of_decision(orders.for_earlier_release()) == orders


UNREADABLE = {
    "no JSON": ("{", "name no version"),
    "no object": ("[]", "name no version"),
    "null": ("null", "name no version"),
    "no version": ("{}", "name no version"),
    "the version of a newer release": ('{"version": 2}', "have version 2, this release reads version 1"),
    "a version that is none": ('{"version": true}', "have version True, this release reads version 1"),
    "a key that is not known": ('{"version": 1, "priority": 1}', "priority: this field is not known"),
    "a text for a number": ('{"version": 1, "awaitsSeconds": "60"}', "awaitsSeconds: must be a number, not '60'"),
    "a device without labels": (
        '{"version": 1, "narrowed": {"resource": "gpu"}}',
        "narrowed.selector: is missing",
    ),
    "a binding in the earlier form": (
        '{"version": 1, "burst": {"limitSeconds": 1, "binding": [["a", "In", ["b"]]]}}',
        "burst.binding[0]: must be a mapping, not a list",
    ),
    "an earlier form without a limit": ('{"version": 0, "burst": {"binding": []}}', "their earlier form is wrong"),
    "an earlier form with a wrong device": ('{"version": 0, "narrowed": 1}', "narrowed: must be a mapping, not 1"),
}


@pytest.mark.parametrize(("text", "words"), UNREADABLE.values(), ids=UNREADABLE)
def test_orders_that_cannot_be_read_are_told_with_their_place(text: str, words: str) -> None:
    with pytest.raises(UnreadableOrdersError) as caught:
        read_orders(text)
    assert str(caught.value).startswith("the stored orders of the run ")
    assert words in str(caught.value)


# Where they come from


def start(**fields: Any) -> Start:
    job = WaitingJob(1, 3, "train", 1, 2, 1, 0, 1000.0, 0)
    return Start(job, 7, {"worker": 2}, {"nodes": {"worker": 2}}, "c is the only cluster", (), **fields)


def test_a_start_orders_what_it_was_decided_by() -> None:
    binding = (("trainmaster.dev/spot", "In", ("true",)),)
    granted = Granted(1, "overflow", 1, Bounds(wait=60.0, limit=60.0, grace=10.0, rate=1), binding)
    product = Product("nvidia.com/gpu", "H100", "nvidia.com/gpu.product")
    assert orders_of(start(product=product, granted=granted), 12.5) == FULL
    assert orders_of(start(), 0.0) is NO_ORDERS
    assert orders_of(start(product=Product("nvidia.com/gpu", "H100")), 0.0) is NO_ORDERS, "no label names the product"
