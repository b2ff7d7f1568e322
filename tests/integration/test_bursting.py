"""Jobs that go to public clusters by policies, from the API to the agent and back to the budget."""

import asyncio
import time
from decimal import Decimal
from typing import Any

import pytest

from tests.conftest import FakeAgent, Service, job
from tests.integration.rows import rows
from tests.waiting import eventually
from trainmaster.protocol.agent import CapacityReport, NodeGroup, Pool
from trainmaster.protocol.prices import NANOS
from trainmaster.protocol.states import RunState
from trainmaster_dispatcher.services.feed_follower import Follower
from trainmaster_dispatcher.services.usage_ledger import Accounting

POLICY: dict[str, Any] = {
    "name": "overflow",
    "queues": ["default"],
    "budget": {"day": "1000"},
    "timeLimit": "5m",
}
PRICE = Decimal(36)
"""Of a core for an hour: a hundredth for a second."""
SPOT = {"trainmaster.dev/spot": "true"}


@pytest.fixture(autouse=True)
async def _within_one_day() -> None:
    """Wait for the next day if this one is nearly over: a budget by day begins anew at midnight UTC."""
    left = 86400 - time.time() % 86400
    if left < 60:
        await asyncio.sleep(left + 1)


async def put(service: Service, kind: str, name: str, body: dict[str, Any]) -> None:
    answer = await service.http.put(f"/v1/{kind}/{name}", json=body)
    assert answer.status_code in (200, 201), answer.text


async def policy(service: Service, **fields: Any) -> None:
    await put(service, "burst-policies", "overflow", {**POLICY, **fields})


async def two_clusters(service: Service, **fields: Any) -> tuple[FakeAgent, FakeAgent]:
    """Connect a private cluster with 1 core and a public one with 8 at a price, and create the policy; return both agents."""
    await put(service, "price-books", "cloud", {"name": "cloud", "onDemand": {"cpu": str(PRICE)}})
    spec = {"name": "public", "clusterKind": "public", "priceBook": "cloud", "placementTimeout": "10s"}
    await put(service, "clusters", "public", spec)
    await policy(service, **fields)
    private, public = service.agent("private"), service.agent("public", session="session-2", holder="holder-2")
    await private.connect(cpu=1)
    await public.connect(cpu=4, nodes=2)
    return private, public


async def gone(service: Service, public: FakeAgent, **fields: Any) -> tuple[str, dict[str, Any]]:
    """Submit a job that goes to the public cluster; return its id, and what the agent received."""
    job_id = await service.submit(**fields)
    return job_id, await public.next_start()


async def ended(public: FakeAgent, run: str, state: RunState = RunState.SUCCEEDED) -> None:
    await public.report(run, RunState.RUNNING, 2, placement={"node": {"main": 1}})
    await public.report(run, state, 3)


async def token_of(service: Service, job_id: str) -> str:
    return str((await service.http.get(f"/v1/jobs/{job_id}/why")).json()["token"])


async def status(service: Service) -> dict[str, Any]:
    found = (await service.http.get("/v1/burst-policies/overflow")).json()
    value: dict[str, Any] = found["status"]
    return value


async def test_a_job_that_fits_nowhere_else_goes_with_a_time_limit(service: Service) -> None:
    _, public = await two_clusters(service)
    job_id, start = await gone(service, public, cpu="2")
    assert start["spec"]["timeLimit"] == "300.000s"
    run = (await service.job(job_id))["runs"][0]
    # 2 cores for 10 s to be placed, 300 s, and 10 s to end.
    assert run["burst"] == {"policy": "overflow", "perHour": "72", "atMost": "6.4", "limitSeconds": 300.0}
    assert run["whyHere"].startswith("public by policy overflow, after it had waited ")


async def test_a_job_with_a_limit_of_its_own_keeps_it(service: Service) -> None:
    _, public = await two_clusters(service)
    _, start = await gone(service, public, cpu="2", timeLimit="1m")
    assert start["spec"]["timeLimit"] == "1m"


async def test_its_members_are_kept_off_nodes_that_the_policy_does_not_allow(service: Service) -> None:
    _, public = await two_clusters(service, spot="never")
    free = {"cpu": 4000, "memory": 2**32}
    groups = (NodeGroup(name="node", count=1, free=free), NodeGroup(name="spot", count=1, free=free, labels=SPOT))
    await public.sync(capacity=CapacityReport(groups=groups, runtime="test", scheduler="test", capabilities=("gang",)))
    _, start = await gone(service, public, cpu="2")
    (role,) = start["spec"]["roles"]
    terms = role["template"]["nodeAffinity"]
    assert {"key": "trainmaster.dev/spot", "operator": "NotIn", "values": ["true"]} in terms
    assert {"key": "karpenter.sh/capacity-type", "operator": "NotIn", "values": ["spot"]} in terms
    assert start["pins"] == {"node": {"main": 1}}


async def test_the_reason_says_what_the_policy_lacks_and_when_it_opens(service: Service) -> None:
    await two_clusters(service, when={"after": "1h"})
    job_id = await service.submit(cpu="2")

    async def is_reported() -> bool:
        return await token_of(service, job_id) == "BurstNotYet"

    await eventually(is_reported)
    why = (await service.http.get(f"/v1/jobs/{job_id}/why")).json()
    assert (
        "By policy overflow it does not go to a public cluster: it may go once it has waited 1h, at " in why["sentence"]
    )


async def test_it_goes_by_itself_once_it_has_waited_long_enough(service: Service) -> None:
    _, public = await two_clusters(service, when={"after": "2s"})
    job_id, _ = await gone(service, public, cpu="2")
    found = await service.job(job_id)
    (event,) = await rows(
        service.stores,
        "SELECT extract(epoch FROM e.at - j.submitted_at)::float8 AS waited FROM events e JOIN jobs j ON j.id = e.job_id"
        " WHERE e.kind = 'dispatched'",
    )
    assert found["cluster"] == "public"
    assert event.waited >= 2.0


async def test_a_cap_holds_and_the_next_goes_when_one_has_ended(service: Service) -> None:
    _, public = await two_clusters(service, atMost={"jobs": 1})
    _, first = await gone(service, public, name="a", cpu="2")
    second = await service.submit("b", cpu="2")

    async def refused() -> bool:
        return await token_of(service, second) == "BurstLimit"

    await eventually(refused)
    await ended(public, first["run"])
    assert (await public.next_start())["job"] == second


async def test_what_ended_runs_cost_counts_before_and_after_it_is_counted_alike(service: Service) -> None:
    _, public = await two_clusters(service, budget={"day": "8"})
    _, start = await gone(service, public, name="a", cpu="2")
    await public.report(start["run"], RunState.RUNNING, 2, placement={"node": {"main": 1}})
    await asyncio.sleep(1.0)
    await public.report(start["run"], RunState.SUCCEEDED, 3)

    async def idle() -> bool:
        return bool((await status(service))["jobs"] == 0)

    await eventually(idle)
    before = Decimal((await status(service))["budgets"][0]["spent"])
    assert Decimal("0.02") < before < Decimal("0.2")
    await Accounting(service.stores.database).run()

    async def counted() -> bool:
        return Decimal((await status(service))["budgets"][0]["spent"]) != before

    await eventually(counted)
    budget = (await status(service))["budgets"][0]
    after = Decimal(budget["spent"])
    # What it has cost is expected to go on, and what it may still cost in any case.
    assert Decimal(budget["forecast"]) >= after + Decimal(budget["committed"])
    (total,) = await rows(service.stores, "SELECT sum(cost) AS cost FROM class_usage")
    (spend,) = await rows(service.stores, "SELECT sum(cost) AS cost FROM policy_spend")
    (run,) = await rows(service.stores, "SELECT cost FROM runs")
    assert int(total.cost) == int(spend.cost) == int(run.cost) == int(after * NANOS)
    # It is charged from when it has nodes, and was estimated from when it was sent.
    assert after <= before


async def test_a_spent_budget_stops_it_and_a_larger_one_lets_it_go(service: Service) -> None:
    _, public = await two_clusters(service, budget={"day": "6.5"})
    _, start = await gone(service, public, name="a", cpu="2")
    await public.report(start["run"], RunState.RUNNING, 2, placement={"node": {"main": 1}})
    await asyncio.sleep(6.0)
    await public.report(start["run"], RunState.SUCCEEDED, 3)
    second = await service.submit("b", cpu="2")

    async def refused() -> bool:
        why = (await service.http.get(f"/v1/jobs/{second}/why")).json()
        return why["token"] == "BurstBudget" and "the budget of 6.50 for a day is not enough: 0.1" in why["sentence"]

    await eventually(refused)
    await policy(service, budget={"day": "7"})
    assert (await public.next_start())["job"] == second


async def test_a_state_that_followed_equals_one_that_was_loaded(service: Service) -> None:
    _, public = await two_clusters(
        service, atMost={"ramp": {"jobs": 5, "every": "1h"}}, budget={"day": "100", "job": "50"}
    )
    followed = Follower()
    await followed.absorb(service.stores, 0.0)
    _, first = await gone(service, public, name="a", cpu="1", placement={"kinds": ["public"]})
    await followed.absorb(service.stores, 0.0)
    await ended(public, first["run"])
    second, again = await gone(
        service, public, name="b", cpu="1", placement={"kinds": ["public"]}, retries={"limit": 3}
    )
    await public.report(again["run"], RunState.RUNNING, 2, placement={"node": {"main": 1}})
    for counts in (False, True):
        if counts:
            await Accounting(service.stores.database).run()

        async def equal() -> bool:
            await followed.absorb(service.stores, 0.0)
            fresh = Follower()
            await fresh.absorb(service.stores, 0.0)
            assert fresh.state.spending.hours
            return all(
                getattr(followed.state, name) == getattr(fresh.state, name)
                for name in ("spending", "job_spent", "burst_runs", "committed", "policies", "provisioning")
            )

        await eventually(equal)
    assert len(followed.state.spending.starts) == 1
    assert second


async def test_a_preview_says_what_a_policy_would_do_and_changes_nothing(service: Service) -> None:
    await two_clusters(service, paused=True)
    await service.submit("a", cpu="2")
    await service.submit("b", cpu="2")

    async def preview(*policies: dict[str, Any]) -> list[dict[str, Any]]:
        answer = await service.http.post("/v1/burst-policies/preview", json={"policies": list(policies)})
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["previews"]
        return found

    async def known() -> bool:
        found = await preview()
        return [(one["goes"], one["jobs"], one["sentence"]) for one in found] == [(False, 2, "it is paused")]

    await eventually(known)
    goes, stays = await preview({**POLICY, "atMost": {"jobs": 1}})
    assert (goes["goes"], goes["jobs"], goes["cluster"], goes["pricePerHour"]) == (True, 1, "public", "72")
    assert goes["atMost"] == "6.4"
    assert (stays["goes"], stays["jobs"]) == (False, 1)
    assert (await service.http.get("/v1/burst-policies/overflow")).json()["paused"] is True
    assert list(await rows(service.stores, "SELECT 1 FROM runs")) == []


async def test_without_a_policy_nothing_goes_any_more_and_what_runs_goes_on(service: Service) -> None:
    _, public = await two_clusters(service)
    job_id, start = await gone(service, public, name="a", cpu="2")
    assert (await service.http.delete("/v1/burst-policies/overflow")).status_code == 204
    await put(service, "queues", "default", {"path": "default", "allowedKinds": ["private"]})
    second = await service.submit("b", cpu="2")

    async def waits() -> bool:
        return await token_of(service, second) == "TooLarge"

    await eventually(waits)
    await ended(public, start["run"])
    await service.until(job_id, "succeeded")
    assert (await service.http.delete("/v1/burst-policies/overflow")).status_code == 404


async def test_budgets_that_are_nearly_used_up_are_told_once(service: Service) -> None:
    _, public = await two_clusters(service, budget={"day": "6.45", "warnAt": [0.001, 0.9]})
    _, start = await gone(service, public, name="a", cpu="2")
    await public.report(start["run"], RunState.RUNNING, 2, placement={"node": {"main": 1}})

    async def is_reported() -> bool:
        return bool(await rows(service.stores, "SELECT part FROM budget_warnings"))

    await eventually(is_reported, 20)
    assert [row.part for row in await rows(service.stores, "SELECT part FROM budget_warnings")] == [0.001]


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "a queue that is not there": ({"queues": ["nowhere"]}, "unknown-queue", "there is no queue 'nowhere'"),
    "a cluster that is not there": ({"clusters": ["nowhere"]}, "unknown-cluster", "there is no cluster 'nowhere'"),
    "a cluster that is not public": (
        {"clusters": ["edge"]},
        "invalid-spec",
        "clusters[0]: edge is edge; a burst policy is for public",
    ),
    "a class that is not there": (
        {"when": {"classAtLeast": "top"}},
        "unknown-priority-class",
        "no priority class 'top'",
    ),
    "no budget": ({"budget": {"job": 5}}, "invalid-spec", "a budget needs at least one of hour, day and month"),
    "no queue": ({"queues": []}, "invalid-spec", "queues"),
    "another name": ({"name": "other"}, "invalid-spec", "the body names burst policy 'other'"),
    "a field that is not known": ({"buget": 5}, "invalid-spec", "buget"),
    "an order of nothing": ({"choose": "order"}, "invalid-spec", "choose: order needs the list of clusters"),
    "a zone that is not there": (
        {"hours": [{"timeZone": "Mars/Base"}]},
        "invalid-spec",
        "there is no time zone 'Mars/Base'",
    ),
}


@pytest.mark.parametrize("sentence", WRONG)
async def test_a_policy_is_refused_with(service: Service, sentence: str) -> None:
    fields, code, message = WRONG[sentence]
    answer = await service.http.put("/v1/burst-policies/overflow", json={**POLICY, **fields})
    assert answer.status_code in (404, 422), answer.text
    assert answer.json()["code"] == code
    assert message in answer.text
    assert (await service.http.get("/v1/burst-policies")).json()["burstPolicies"] == []


async def test_each_cluster_of_a_policy_that_is_not_public_is_named(service: Service) -> None:
    body = {**POLICY, "clusters": ["edge", "private"]}
    put = await service.http.put("/v1/burst-policies/overflow", json=body)
    applied = await service.http.post("/v1/apply", json={"documents": [{"kind": "BurstPolicy", **body}]})
    preview = await service.http.post("/v1/burst-policies/preview", json={"policies": [body]})
    for answer, place in ((put, ""), (applied, "documents[0]: "), (preview, "")):
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid-spec")
        assert [one["path"] for one in answer.json()["mistakes"]] == [f"{place}clusters[0]", f"{place}clusters[1]"]


async def test_of_a_policy_of_other_queues_too_a_user_sees_whether_it_is_open_and_no_counts(service: Service) -> None:
    await two_clusters(service)
    for path in ("org", "org/a"):
        await put(service, "queues", path, {"path": path})
    await policy(service, queues=["org"])
    made = await service.http.post("/v1/keys", json={"name": "u", "role": "user", "queues": ["org/a"]})

    async with service.as_key(made.json()["key"]) as user:

        async def seen() -> tuple[object, object, bool]:
            (one,) = (await user.get("/v1/burst-policies")).json()["burstPolicies"]
            return one["shared"], one.get("open"), "status" in one

        async def is_open() -> bool:
            return await seen() == (True, True, False)

        async def is_closed() -> bool:
            return await seen() == (True, False, False)

        await eventually(is_open)
        await policy(service, queues=["org"], atMost={"jobs": 0})
        await eventually(is_closed)
        (own,) = (await service.http.get("/v1/burst-policies")).json()["burstPolicies"]
        assert own["status"]["jobs"] == 0
        assert not {"shared", "open"} & own.keys(), "an admin changes it by a PUT of what is shown, without the status"


async def test_a_queue_that_a_policy_names_is_not_removed(service: Service) -> None:
    await put(service, "queues", "spare", {"path": "spare"})
    await policy(service, queues=["spare"])
    answer = await service.http.delete("/v1/queues/spare")
    assert (answer.status_code, answer.json()["code"]) == (409, "in-use")
    assert "named by burst policy overflow" in answer.json()["detail"]


async def test_jobs_of_a_submission_in_one_go_keep_to_the_budget(service: Service) -> None:
    await two_clusters(service, budget={"day": "13"})
    answer = await service.http.post("/v1/jobs", json={"jobs": [job(f"j{number}", cpu="2") for number in range(4)]})
    assert answer.status_code == 201

    async def sent() -> bool:
        return len(await rows(service.stores, "SELECT 1 FROM runs")) == 2

    await eventually(sent)
    await asyncio.sleep(1.5)
    # Each may cost 6.40, so the third one would go beyond 13.
    assert len(await rows(service.stores, "SELECT 1 FROM runs")) == 2
    assert (await status(service))["jobs"] == 2


async def test_a_policy_that_was_removed_and_made_again_goes_on_with_what_was_spent(service: Service) -> None:
    _, public = await two_clusters(service, budget={"day": "8"})
    _, start = await gone(service, public, name="a", cpu="2")
    await public.report(start["run"], RunState.RUNNING, 2, placement={"node": {"main": 1}})
    await asyncio.sleep(1.0)
    await public.report(start["run"], RunState.SUCCEEDED, 3)
    assert (await service.http.delete("/v1/burst-policies/overflow")).status_code == 204
    await policy(service, budget={"day": "9"})

    async def known() -> bool:
        found = (await service.http.get("/v1/burst-policies/overflow")).json().get("status")
        return found is not None and Decimal(found["budgets"][0]["spent"]) > Decimal("0.02")

    await eventually(known)


async def test_a_policy_can_be_paused_though_a_cluster_that_it_names_has_gone(service: Service) -> None:
    await two_clusters(service, clusters=["public"])
    assert (await service.http.delete("/v1/clusters/public?force=true")).status_code == 204
    await policy(service, clusters=["public"], paused=True)
    answer = await service.http.put("/v1/burst-policies/overflow", json={**POLICY, "clusters": ["public"]})
    assert (answer.status_code, answer.json()["code"]) == (422, "unknown-cluster")


async def test_what_earlier_runs_of_a_job_have_cost_counts_when_it_is_tried_again(service: Service) -> None:
    # A job may cost 6.40, so half a second of the earlier run is too much; a machine that stands still may make it cost far more.
    _, public = await two_clusters(service, budget={"day": "100", "job": "6.41"})
    job_id, start = await gone(service, public, name="a", cpu="2")
    await public.report(start["run"], RunState.RUNNING, 2, placement={"node": {"main": 1}})
    await service.until(job_id, "running")
    await asyncio.sleep(2.0)
    await public.report(start["run"], RunState.FAILED, 3)
    await service.until(job_id, "failed")
    assert (await service.http.post(f"/v1/jobs/{job_id}/retry")).status_code == 200
    sentence = ""

    async def refused() -> bool:
        nonlocal sentence
        sentence = (await service.http.get(f"/v1/jobs/{job_id}/why")).json()["sentence"]
        return "the budget of 6.41 for a job is not enough: earlier runs of it have cost " in sentence

    await eventually(refused)
    assert Decimal(sentence.split("have cost ")[1].split()[0].rstrip(",;")) > Decimal("0.01")


async def test_how_long_a_pool_took_is_learnt_from_runs_that_waited_for_it(service: Service) -> None:
    agent = service.agent("private")
    node = {"cpu": 4000, "memory": 2**32}
    pool = Pool(name="big", count=2, most=2, free={"cpu": 8000, "memory": 2**33})
    small = NodeGroup(name="node", count=1, free=node)
    await agent.sync(capacity=CapacityReport(groups=(small,), pools=(pool,), runtime="test", scheduler="test"))
    await service.submit("waits", cpu="8")
    start = await agent.next_start()
    assert start["pins"] == {"+big": {"main": 1}}
    assert start["placementTimeoutSeconds"] > 300
    await agent.report(start["run"], RunState.PENDING, 1)
    await agent.report(start["run"], RunState.RUNNING, 2, placement={"big": {"main": 1}})
    (sample,) = await rows(service.stores, "SELECT pool, seconds FROM provisionings")
    assert sample.pool == "big"
    assert 0 < sample.seconds < 30
    await service.submit("never", cpu="8")
    start = await agent.next_start()
    await agent.report(start["run"], RunState.RETURNED, 1, message="no node came")
    found = await rows(service.stores, "SELECT seconds FROM provisionings ORDER BY id")
    assert [row.seconds is None for row in found] == [False, True]
    follower = Follower()
    await follower.absorb(service.stores, 0.0)
    (learnt,) = follower.state.provisioning.values()
    assert (learnt.grown, learnt.failed) == (1, 1)
