"""An unexpected error while one class, cluster, policy, reservation or run is decided on changes nothing for all others."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from tests.unit.building import NOW, StateBuilder, nodes, simple
from trainmaster.protocol.reasons import Check, Token
from trainmaster.protocol.states import ClusterKind, Order
from trainmaster_dispatcher.domain.shapes import Elasticity
from trainmaster_dispatcher.scheduling.cycle import attempt, burst, decide, explain, faults, start_accounting
from trainmaster_dispatcher.scheduling.cycle import elastic as elastic_growth
from trainmaster_dispatcher.scheduling.cycle.engine import Carried
from trainmaster_dispatcher.scheduling.packing.free_capacity import ClusterLayouts
from trainmaster_dispatcher.scheduling.packing.gang_packing import fit
from trainmaster_dispatcher.scheduling.packing.release_timeline import ReleaseTimeline
from trainmaster_dispatcher.scheduling.preemption import victims
from trainmaster_dispatcher.scheduling.reservations.advance import AdvanceReservations
from trainmaster_dispatcher.scheduling.selection import cluster_index
from trainmaster_dispatcher.scheduling.state.from_specs import unreadable_policy, unreadable_queue, unreadable_shape
from trainmaster_dispatcher.scheduling.state.jobs import HeldBack
from trainmaster_dispatcher.scheduling.state.state import SchedulerState

BAD = simple(cpu=2)
"""The shape of tenant a, for which everything fails."""
GOOD = simple(cpu=1)


class InjectedError(Exception):
    """An unexpected error."""


def tenants() -> StateBuilder:
    """Return a job of tenant a with shape BAD, before one of tenant b with GOOD; both fit on either of two clusters."""
    builder = StateBuilder().queue("org/a").queue("org/b").cluster("c", nodes(2)).cluster("d", nodes(2))
    return builder.job("bad", BAD, queue="org/a", of="high").job("good", GOOD, queue="org/b")


def failing(real: Callable[..., Any], is_meant: Callable[..., bool]) -> Callable[..., Any]:
    def fails(*given: Any, **named: Any) -> Any:
        if is_meant(*given):
            raise InjectedError
        return real(*given, **named)

    return fails


def is_bad(state: SchedulerState, shape_id: int) -> bool:
    return state.shapes[shape_id] is BAD


LOOKS: dict[str, tuple[Any, str, Callable[..., bool]]] = {
    "its terms": (attempt, "_prepare", lambda cycle, key, _queue: is_bad(cycle.index.state, key.shape_id)),
    "its sizes": (cluster_index.ClusterIndex, "sizes_of", lambda index, shape_id: is_bad(index.state, shape_id)),
    "filters": (cluster_index.ClusterIndex, "not_allowed", lambda index, key, _: is_bad(index.state, key.shape_id)),
    "the fit": (cluster_index, "fit", lambda shape, *_: shape is BAD),
    "scores": (cluster_index, "_domains", lambda shape, *_: shape is BAD),
    "options": (cluster_index.ClusterIndex, "option", lambda index, shape_id, *_: is_bad(index.state, shape_id)),
    "the choice": (attempt, "search_best", lambda cycle, key, *_: is_bad(cycle.index.state, key.shape_id)),
    "the start": (decide, "start_of", lambda job, *_: job.name == "bad"),
    "what it takes": (decide, "take", lambda _cycle, job, *_: job.name == "bad"),
    "jobs alike behind it": (
        decide,
        "start_equivalent",
        lambda _cycle, _turns, plan, *_: plan.starts[-1].job.name == "bad",
    ),
}


@pytest.mark.parametrize(("module", "name", "is_meant"), LOOKS.values(), ids=LOOKS)
def test_a_class_whose_look_fails_is_held_back_alone_and_looked_at_again_later(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, is_meant: Callable[..., bool]
) -> None:
    builder = tenants()
    monkeypatch.setattr(module, name, failing(getattr(module, name), is_meant))
    found = builder.cycle()
    assert found.started == ["good"]
    assert found.reason("bad").token is Token.INTERNAL_ERROR
    assert "InjectedError" in found.reason("bad").sentence
    assert found.reason("bad").advice
    (fault,) = found.plan.faults
    assert (fault.kind, type(fault.error)) == ("job_class", InjectedError)
    assert "org/a" in fault.name
    builder.engine.carry_over(found.plan)
    monkeypatch.undo()
    assert builder.cycle().started == ["good"], "it is not looked at again before its time"
    assert builder.later(2).cycle().started == ["bad", "good"]
    assert builder.cycle().plan.held_back == {}


def test_a_class_that_fails_again_and_again_is_held_back_for_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    builder, pauses = tenants(), list[float]()
    module, name, is_meant = LOOKS["the fit"]
    monkeypatch.setattr(module, name, failing(getattr(module, name), is_meant))
    for _ in range(12):
        plan = builder.cycle().plan
        builder.engine.carry_over(plan)
        (held,) = plan.held_back.values()
        pauses.append(held.until - builder.now)
        builder.later(held.until - builder.now)
    assert pauses == sorted(pauses)
    assert pauses[0] == 1
    assert pauses[-1] == 64


def test_many_classes_that_fail_cost_no_more_than_a_few_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = StateBuilder().queue("org/a").queue("org/b").cluster("c", nodes(4, cpu=4, memory="8Gi"))
    for number in range(200):
        builder.job(f"bad{number}", simple(cpu="2", memory=f"{number + 1}Mi"), queue="org/a", of="high")
    builder.job("good", GOOD, queue="org/b")
    begun = Mock(wraps=decide._decide)
    monkeypatch.setattr(decide, "_decide", begun)
    monkeypatch.setattr(cluster_index, "fit", failing(fit, lambda shape, *_: shape is not GOOD))
    found = builder.cycle()
    assert found.started == ["good"]
    assert len(found.plan.held_back) == 200
    assert begun.call_count <= faults.FEW_RESTARTS + 1


def test_decisions_that_fail_without_end_are_given_up_with_their_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = StateBuilder().cluster("c", nodes(100, cpu=4, memory="8Gi"))
    for number in range(faults.MOST_RESTARTS + 1):
        builder.job(f"bad{number}", simple(cpu="1", memory=f"{number + 1}Mi"))
    monkeypatch.setattr(decide, "take", failing(start_accounting.take, lambda *_: True))
    with pytest.raises(faults.TooManyFaultsError, match="unexpected errors in one decision") as caught:
        builder.cycle()
    assert isinstance(caught.value.__cause__, InjectedError)


def reports(layouts: ClusterLayouts, cluster_id: int) -> bool:
    """Return whether the cluster is c and has a report."""
    cluster = layouts.state.clusters[cluster_id]
    return cluster.name == "c" and cluster.report is not None


CLUSTERS: dict[str, tuple[Any, str, Callable[..., bool]]] = {
    "its free capacity": (ClusterLayouts, "now", lambda layouts, cluster_id: reports(layouts, cluster_id)),
    "its empty nodes": (ClusterLayouts, "empty", lambda layouts, cluster_id: reports(layouts, cluster_id)),
    "its capacity": (
        cluster_index.ClusterIndex,
        "_capacity_of",
        lambda _rooms, cluster: cluster.name == "c" and cluster.report is not None,
    ),
    "what it is left with later": (
        ReleaseTimeline,
        "__init__",
        lambda _later, layouts, cluster_id: reports(layouts, cluster_id),
    ),
}


@pytest.mark.parametrize(("owner", "name", "is_meant"), CLUSTERS.values(), ids=CLUSTERS)
def test_a_cluster_that_cannot_be_worked_out_is_closed_and_the_others_take_the_jobs(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, is_meant: Callable[..., bool]
) -> None:
    builder = tenants().job("blocked", simple(8, cpu=1), queue="org/b").job("waits", simple(cpu=64), queue="org/a")
    before = builder.state.clusters[builder.clusters["c"]]

    monkeypatch.setattr(owner, name, failing(getattr(owner, name), is_meant))
    found = builder.cycle()
    assert set(found.where.values()) == {"d"} or name == "__init__"
    assert {"bad", "good"} <= set(found.started)
    if found.plan.faults:
        (fault,) = found.plan.faults
        assert (fault.kind, fault.name) == ("cluster", "c")
        assert builder.state.clusters[builder.clusters["c"]].fault == "cluster c cannot be used (InjectedError)"
        assert found.verdict("waits", "c").check is Check.NO_REPORT
        assert "closed until this is fixed: cluster c" in found.verdict("waits", "c").sentence
    else:
        assert name == "__init__"
    monkeypatch.undo()
    builder.state.put_cluster(before)
    assert {"bad", "good"} <= set(builder.cycle().started)
    assert not builder.cycle().plan.faults


def test_a_policy_that_cannot_be_judged_lets_nobody_go_and_another_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    prices = {"onDemand": {"cpu": 1}}
    builder = StateBuilder().queue("org/a").queue("org/b")
    builder.cluster("rented", nodes(4), kind=ClusterKind.PUBLIC, prices=prices)
    for tenant in ("a", "b"):
        builder.policy(f"of-{tenant}", f"org/{tenant}", budget={"day": 1000}, timeLimit="1h")
        builder.job(tenant, queue=f"org/{tenant}")
    real = burst.Bursts._when
    monkeypatch.setattr(burst.Bursts, "_when", failing(real, lambda _bursts, policy, _first: policy.name == "of-a"))
    found = builder.cycle()
    assert found.started == ["b"]
    assert (
        "By policy of-a it does not go to a public cluster: an error inside Trainmaster" in found.reason("a").sentence
    )
    assert [(fault.kind, fault.name) for fault in found.plan.faults] == [("burst_policy", "of-a")]
    monkeypatch.undo()
    assert sorted(builder.cycle().started) == ["a", "b"]


def test_a_policy_whose_utilisation_cannot_be_known_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = StateBuilder().cluster("rented", nodes(4), kind=ClusterKind.PUBLIC, prices={"onDemand": {"cpu": 1}})
    builder.policy("broken", "main", budget={"day": 9}, timeLimit="1h", when={"utilisation": {"above": 0.5}}).job("j")
    monkeypatch.setattr(burst, "fullness", failing(burst.fullness, lambda _rooms: True))
    found = builder.cycle()
    assert found.started == []
    assert "keeps the policy from being evaluated" in found.reason("j").sentence


def test_a_reservation_that_cannot_be_worked_out_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = tenants().reserved("weekend", 2, queue="org/a", starts=60, ends=3600, on=("c", "d"))
    monkeypatch.setattr(
        AdvanceReservations,
        "_others",
        failing(AdvanceReservations._others, lambda _reservations, _cluster, one, _at: bool(one.nodes)),
    )
    found = builder.cycle()
    assert sorted(found.started) == ["bad", "good"]
    assert [(fault.kind, fault.name) for fault in found.plan.faults] == [("reservation", "weekend")]
    assert not builder.state.advance


def test_a_run_whose_growth_fails_does_not_grow_and_another_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = StateBuilder().cluster("c", nodes(1, cpu=8))
    elastic = replace(simple(4), elastic=Elasticity(1, 0.0), roles=(replace(simple(4).roles[0], least=1),))
    builder.run("a", elastic, on="c", sizes={"worker": 1}).run("b", elastic, on="c", sizes={"worker": 1})
    real = elastic_growth._growth
    monkeypatch.setattr(elastic_growth, "_growth", failing(real, lambda _cycle, run: run.job_id == builder.ids["a"]))
    plan = builder.cycle().plan
    assert [one.job_id for one in plan.grows] == [builder.ids["b"]]
    assert [(fault.kind, fault.key) for fault in plan.faults] == [("run", builder.ids["a"])]
    monkeypatch.undo()
    builder.state.spared = frozenset({builder.ids["a"]})
    assert [one.job_id for one in builder.cycle().plan.grows] == [builder.ids["b"]]


def test_a_run_that_is_spared_is_not_ended_for_others() -> None:
    builder = StateBuilder().cluster("c", nodes(2, cpu=1)).run("low1", on="c", of="low").run("low2", on="c", of="low")
    builder.job("j", of="high")
    (start,) = builder.cycle().plan.starts
    (first,) = start.evicts
    builder.state.spared = frozenset({first.job_id})
    (start,) = builder.cycle().plan.starts
    (second,) = start.evicts
    assert second.job_id != first.job_id


def test_an_error_while_victims_are_looked_for_leaves_the_accounts_of_others_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    builder = StateBuilder().queue("org/a").queue("org/b").cluster("c", nodes(1, cpu=2)).cluster("d", nodes(1, cpu=1))
    builder.run("low", simple(cpu=2), on="c", of="low", queue="org/a")
    builder.job("bad", simple(cpu=2), queue="org/a", of="high").job("good", queue="org/b")
    monkeypatch.setattr(victims.VictimSearch, "_on", failing(victims.VictimSearch._on, lambda *_: True))
    found = builder.cycle()
    assert found.started == ["good"]
    assert found.reason("bad").token is Token.INTERNAL_ERROR


def test_in_a_queue_that_keeps_its_order_nobody_waits_behind_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = StateBuilder().queue("main", order=Order.STRICT).cluster("c", nodes(4))
    builder.job("bad", BAD, of="high").job("good", GOOD)
    monkeypatch.setattr(cluster_index, "fit", failing(fit, lambda shape, *_: shape is BAD))
    assert builder.cycle().started == ["good"]


@pytest.mark.parametrize("what", ["shape", "queue", "class"])
def test_jobs_that_depend_on_something_unreadable_wait_and_others_start(what: str) -> None:
    builder = tenants()
    job = builder.state.jobs[builder.ids["bad"]]
    if what == "shape":
        builder.state.put_shape(
            job.shape_id, unreadable_shape({"roles": [{"name": "w", "needs": {"cpu": 5}}]}, "a fault")
        )
    elif what == "queue":
        builder.state.put_queue(unreadable_queue(job.queue_id, "org/a", builder.queues["org"], "a fault"))
    else:
        builder.state.put_class(replace(builder.state.classes[job.class_id], fault="a fault"))
    found = builder.cycle()
    assert found.started == ["good"]
    assert found.reason("bad").token is Token.INTERNAL_ERROR
    assert found.reason("bad").sentence == "It is held back until this is fixed: a fault."


def test_an_unreadable_policy_still_keeps_its_queues_from_public_clusters() -> None:
    builder = StateBuilder().queue("main", kinds=(ClusterKind.PRIVATE, ClusterKind.PUBLIC))
    builder.cluster("rented", nodes(4), kind=ClusterKind.PUBLIC, prices={"onDemand": {"cpu": 1}}).job("j")
    assert builder.cycle().started == ["j"]
    builder.state.set_policies([unreadable_policy(1, "broken", 3, ["main"], "a fault")])
    found = builder.cycle()
    assert found.started == []
    assert "By policy broken it does not go to a public cluster: a fault" in found.reason("j").sentence


@pytest.mark.parametrize(
    "body", [None, [], "x", {}, {"roles": 3}, {"roles": [None, {"name": 1}, {"name": "a", "needs": 7}]}]
)
def test_a_shape_of_which_nothing_can_be_read_holds_nothing(body: Any) -> None:
    shape = unreadable_shape(body, "a fault")
    assert shape.fault == "a fault"
    assert shape.total == {}


def test_what_held_back_classes_that_have_gone_is_forgotten() -> None:
    builder = tenants()
    key = builder.state.class_of(builder.ids["bad"])
    builder.engine.carried = Carried(held_back={key: HeldBack(3, NOW + 60, explain.internal_error(InjectedError()))})
    builder.state.drop_job(builder.ids["bad"])
    assert builder.cycle().plan.held_back == {}


def test_a_decision_without_errors_tells_of_none() -> None:
    plan = tenants().cycle().plan
    assert (plan.faults, plan.held_back) == ([], {})
