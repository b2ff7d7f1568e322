"""Jobs that go to nodes which are still to come."""

from typing import Any

import pytest

from tests.unit.building import NOW, StateBuilder, gang, nodes, role, simple
from trainmaster.protocol.agent import Pool
from trainmaster.protocol.placement import COMING
from trainmaster.protocol.reasons import Tier, Token
from trainmaster.protocol.states import ClusterKind
from trainmaster_dispatcher.domain.provisioning import UNSEEN, learn
from trainmaster_dispatcher.scheduling.queries.dry_run import try_out
from trainmaster_dispatcher.scheduling.queries.queue_position import quotas_of
from trainmaster_dispatcher.scheduling.state.jobs import WaitingJob
from trainmaster_dispatcher.scheduling.state.live_runs import freeze_placement

BIG = simple(cpu=8)
ALL = tuple(ClusterKind)


def pool(count: int = 2, **more: Any) -> Pool:
    """Return a pool of up to four nodes of 8 cores, of which ``count`` can still come."""
    return Pool(most=4, **nodes(count, "big", cpu=8, **more).model_dump())


def growing(count: int = 2, **more: Any) -> StateBuilder:
    """Return a cluster with one node of 4 cores, and a pool that may bring some of 8."""
    return StateBuilder().cluster("c", nodes(1, cpu=4), pools=(pool(count),), **more)


def test_a_job_that_fits_on_no_node_goes_to_one_that_is_to_come() -> None:
    start = growing().job("j", BIG).cycle().start("j")
    assert (start.pools, start.placement) == (("big",), {f"{COMING}big": {"worker": 1}})
    assert start.awaits == UNSEEN.timeout
    assert start.why.startswith("c, where its pool big grows for it, which is expected to take ")


def test_it_goes_where_there_is_room_now_instead() -> None:
    builder = growing().cluster("d", nodes(1, cpu=8)).job("j", BIG)
    assert builder.cycle().where == {"j": "d"}
    assert builder.cycle().start("j").pools == ()


def test_what_could_come_is_promised_once() -> None:
    builder = growing(2).job("a", BIG).job("b", BIG).job("c", BIG)
    assert builder.applied().started == ["a", "b"]
    assert builder.later(60).cycle().started == []


def test_a_gang_may_use_what_is_there_and_what_is_to_come() -> None:
    shape = gang(role(3, cpu=4))
    start = growing(1).job("j", shape).cycle().start("j")
    assert start.placement == {"nodes": {"worker": 1}, f"{COMING}big": {"worker": 2}}


def test_a_node_that_has_come_is_not_free_for_others_while_those_who_wait_for_it_have_not_said_where_they_are() -> None:
    builder = growing(2).job("a", BIG)
    builder.applied()
    builder.cluster("c", nodes(1, cpu=4), nodes(1, "new", cpu=8), pools=(pool(1),))
    outcome = builder.job("b", BIG).cycle()
    assert outcome.start("b").pools == ("big",)
    run = builder.state.runs[builder.ids["a"]]
    run.placement = freeze_placement({"new": {"worker": 1}})
    run.load = None
    builder.state.drop_job(run.job_id)
    builder.state.put_run(run)
    assert builder.cycle().start("b").pools == ("big",)


def test_small_jobs_go_on_starting_on_nodes_that_those_who_wait_cannot_use() -> None:
    builder = growing(2).job("a", BIG)
    builder.applied()
    outcome = builder.job("small", simple(cpu=4)).cycle()
    assert (outcome.where, outcome.start("small").pools) == ({"small": "c"}, ())


def test_when_the_run_ends_the_nodes_may_be_asked_for_again() -> None:
    builder = growing(1).job("a", BIG)
    builder.applied()
    assert builder.job("b", BIG).cycle().started == []
    assert builder.ended("a").cycle().started == ["b"]


REFUSED: dict[str, tuple[StateBuilder, Token]] = {
    "by quota": (growing().queue("main", limits={"cpu": 4}).job("j", BIG), Token.QUEUE_LIMIT),
    "where the pool's nodes are too small": (growing().job("j", simple(cpu=9)), Token.TOO_LARGE),
    "where no more may come now": (growing(0).job("j", BIG), Token.INSUFFICIENT_CAPACITY),
    "where there could never be enough": (growing().job("j", gang(role(6, cpu=8))), Token.TOO_LARGE),
    "on a cluster that has returned it": (
        growing().cluster("d", nodes(1, cpu=8), lease=-1).job("j", BIG, returned_by=("c",)),
        Token.COOLING_DOWN,
    ),
    "on a kind that its queue does not allow": (
        growing(kind=ClusterKind.PUBLIC).job("j", BIG),
        Token.NO_CLUSTER_ALLOWED,
    ),
    "on a cordoned cluster": (growing(cordoned=True).job("j", BIG), Token.CORDONED),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_nothing_grows(sentence: str) -> None:
    builder, token = REFUSED[sentence]
    outcome = builder.cycle()
    assert outcome.started == []
    assert outcome.reason("j").token is token


def test_what_keeps_pools_from_growing_is_the_reason_of_a_job_that_needs_their_nodes() -> None:
    quota = "in back-off after a scale-up that failed: QUOTA_EXCEEDED"
    pools = (pool(0), pool(0).model_copy(update={"name": "dear", "blocked": quota}))
    sentence = StateBuilder().cluster("c", nodes(1, cpu=4), pools=pools).job("j", BIG).cycle().reason("j").sentence
    full = f"big has the most nodes that it may have, {pools[0].most}"
    assert f"no more of them can come now: pool {full}; dear gets none: {quota}" in sentence
    few = growing(1).job("j", gang(role(2, cpu=8))).cycle().reason("j").sentence
    assert "it fits on nodes that its pools bring, and too few of them can come now" in few


def test_a_pool_that_is_known_to_come_soon_gets_less_time() -> None:
    builder = growing().job("j", BIG)
    builder.state.set_provisioning({(builder.clusters["c"], "big"): learn([30.0] * 20)})
    start = builder.cycle().start("j")
    assert start.awaits == 1.5 * 30 + 60
    assert start.why.endswith("which is expected to take 32s")


def test_a_job_on_trial_is_told_that_it_could_run_though_only_on_nodes_to_come() -> None:
    builder = growing()
    job = WaitingJob(0, 0, "j", builder.queues["main"], 2, 0, 0, NOW, 0)
    trial = try_out(builder.engine, quotas_of(builder.engine, NOW), job, BIG, NOW)
    assert trial is not None
    assert (trial.could_run, trial.starts_now, trial.fits_empty, trial.fits_now) == (True, True, ("c",), ())


def test_by_a_policy_it_goes_to_a_pool_and_the_time_until_nodes_are_there_is_paid_for() -> None:
    builder = StateBuilder().cluster("own", nodes(1, cpu=4))
    prices = {"onDemand": {"cpu": 1}}
    builder.cluster("rented", kind=ClusterKind.PUBLIC, prices=prices, pools=(pool(),), timeout=100.0)
    start = builder.policy(budget={"day": 100}, timeLimit="1h").job("j", BIG).cycle().start("j")
    assert start.granted is not None
    assert (start.pools, start.granted.bounds.wait) == (("big",), UNSEEN.timeout)
    assert start.granted.bounds.rate == 8 * 10**9


def test_a_policy_without_spot_does_not_use_a_pool_of_spot_nodes() -> None:
    builder = StateBuilder().cluster("own", nodes(1, cpu=4))
    spot = pool(labels={"trainmaster.dev/spot": "true"})
    builder.cluster("rented", kind=ClusterKind.PUBLIC, prices={"onDemand": {"cpu": 1}}, pools=(spot,))
    builder.policy(budget={"day": 100}, timeLimit="1h", spot="never").job("j", BIG)
    assert builder.cycle().started == []
    builder.policy(budget={"day": 100}, timeLimit="1h", spot="only")
    start = builder.cycle().start("j")
    assert start.granted is not None
    assert start.granted.binding == (("trainmaster.dev/spot", "In", ("true",)),)


PRODUCT = "nvidia.com/gpu.product"
A_GPU = simple(cpu=1, gpu=1)


def gpus(product: str, count: int, *, coming: bool = False) -> Any:
    found = nodes(count, product.lower(), labels={PRODUCT: product}, cpu=8, gpu=2)
    return Pool(most=4, **found.model_dump()) if coming else found


def by_product(**limits: int) -> StateBuilder:
    """Return a cluster without GPUs, whose pools may bring A100 and V100, and queue main with limits by product."""
    builder = StateBuilder().queue("main", limits={f"gpu@product={name}": most for name, most in limits.items()})
    return builder.cluster("c", nodes(1, cpu=4), pools=(gpus("A100", 2, coming=True), gpus("V100", 2, coming=True)))


def test_where_quota_is_by_product_a_pool_of_one_that_it_has_left_grows_and_the_job_is_bound_to_it() -> None:
    start = by_product(A100=0).job("j", A_GPU).cycle().start("j")
    assert start.placement == {f"{COMING}v100": {"worker": 1}}
    assert start.product is not None
    assert (start.product.label, start.product.name) == (PRODUCT, "V100")


def test_nothing_grows_where_all_products_are_used_up() -> None:
    reason = by_product(A100=0, V100=0).job("j", A_GPU).cycle().reason("j")
    assert reason.tier is Tier.QUOTA
    assert "nvidia.com/gpu@product=A100" in reason.sentence


def test_what_could_come_counts_for_the_quota_of_its_product() -> None:
    builder = by_product(A100=1, V100=0).jobs(2, "j", A_GPU)
    outcome = builder.cycle()
    assert len(outcome.started) == 1
    assert outcome.start(outcome.started[0]).placement == {f"{COMING}a100": {"worker": 1}}


def test_by_a_policy_a_pool_is_chosen_by_product_too() -> None:
    builder = StateBuilder().queue("main", limits={"gpu@product=A100": 0, "gpu@kind=public": 10})
    builder.cluster(
        "rented",
        nodes(1, cpu=4),
        kind=ClusterKind.PUBLIC,
        pools=(gpus("A100", 2, coming=True), gpus("V100", 2, coming=True)),
        prices={"onDemand": {"cpu": 1}},
    )
    builder.policy(budget={"day": 1000}, timeLimit="1h").job("j", A_GPU)
    start = builder.cycle().start("j")
    assert start.placement == {f"{COMING}v100": {"worker": 1}}
    assert start.product is not None
    assert start.product.name == "V100"


def test_nodes_that_are_there_are_used_before_commoner_ones_that_are_to_come() -> None:
    builder = StateBuilder().cluster("c", gpus("V100", 1), pools=(gpus("A100", 4, coming=True),))
    start = builder.job("j", gang(role(3, cpu=1, gpu=1))).cycle().start("j")
    assert start.placement == {"v100": {"worker": 2}, f"{COMING}a100": {"worker": 1}}


def test_who_waits_for_a_product_is_not_thought_to_take_another_one_meanwhile() -> None:
    """A node of the wrong product is free for others, and the last node to come is promised once."""
    builder = StateBuilder().queue("bound", limits={"gpu@product=A100": 0}).queue("free")
    builder.cluster("c", gpus("A100", 1), pools=(gpus("V100", 1, coming=True),))
    builder.jobs(2, "j", simple(cpu=1, gpu=2), queue="bound")
    assert builder.applied().started == ["j1"]
    only = gang(role(node_selector=((PRODUCT, "A100"),), cpu=1, gpu=2))
    outcome = builder.later(1).job("k", only, queue="free").cycle()
    assert outcome.started == ["k"]


def test_nodes_that_are_there_are_used_first_even_where_more_of_another_product_could_come() -> None:
    small = Pool(most=9, **nodes(9, "small", labels={PRODUCT: "A100"}, cpu=8, gpu=1).model_dump())
    builder = StateBuilder().cluster("c", nodes(1, "v", labels={PRODUCT: "V100"}, cpu=8, gpu=4), pools=(small,))
    start = builder.job("j", gang(role(6, cpu=1, gpu=1))).cycle().start("j")
    assert start.placement == {"v": {"worker": 4}, f"{COMING}small": {"worker": 2}}
