"""What is tried before a run is ended: shortcuts leave out only attempts that would have failed."""

from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.building import StateBuilder, nodes, simple
from trainmaster_dispatcher.scheduling.preemption.what_if import WhatIf
from trainmaster_dispatcher.scheduling.state.plan import Plan

POOLS = ("a", "b", "c")
HOLDS = 4
"""CPUs of each node."""


class Run(NamedTuple):
    queue: str
    of: str
    pool: str
    cpu: int
    members: int
    ago: float


class Job(NamedTuple):
    queue: str
    of: str
    pool: str | None
    """The only pool whose nodes it selects; None: any."""
    cpu: int
    members: int


runs = st.builds(
    Run,
    queue=st.sampled_from(["owed", "poor"]),
    of=st.sampled_from(["low", "normal"]),
    pool=st.sampled_from(POOLS),
    cpu=st.integers(1, HOLDS),
    members=st.integers(1, 2),
    ago=st.floats(0, 1000),
)
jobs = st.builds(
    Job,
    queue=st.sampled_from(["owed", "poor"]),
    of=st.sampled_from(["low", "normal", "high"]),
    pool=st.sampled_from([None, *POOLS]),
    cpu=st.integers(1, HOLDS + 1),
    members=st.sampled_from([1, 1, 1, 2]),
)


def world(running: list[Run], waiting: list[Job]) -> StateBuilder:
    """Return two clusters of three pools, two nodes each; a run is where its pool has room, or not at all."""
    builder = StateBuilder().queue("owed", guaranteed={"cpu": 8}).queue("poor", limits={"cpu": 40})
    free: dict[tuple[str, str], list[int]] = {}
    for cluster in ("one", "two"):
        builder.cluster(cluster, *(nodes(2, pool, labels={"pool": pool}, cpu=HOLDS) for pool in POOLS))
        free |= {(cluster, pool): [HOLDS, HOLDS] for pool in POOLS}
    for number, run in enumerate(running):
        cluster = ("one", "two")[number % 2]
        left = free[cluster, run.pool]
        if sum(one // run.cpu for one in left) < run.members:
            continue
        for _ in range(run.members):
            left[left.index(max(left))] -= run.cpu
        shape = simple(run.members, cpu=run.cpu, node_selector=(("pool", run.pool),))
        placement = {run.pool: {"worker": run.members}}
        builder.run(f"r{number}", shape, on=cluster, queue=run.queue, of=run.of, ago=run.ago, placement=placement)
    for number, job in enumerate(waiting):
        selector: dict[str, Any] = {} if job.pool is None else {"node_selector": (("pool", job.pool),)}
        builder.job(f"j{number}", simple(job.members, cpu=job.cpu, **selector), queue=job.queue, of=job.of, age=number)
    return builder


def starts(plan: Plan) -> list[tuple[str, int, object, list[int]]]:
    return [(one.job.name, one.cluster_id, one.placement, [end.job_id for end in one.evicts]) for one in plan.starts]


@given(st.lists(runs, min_size=8, max_size=24), st.lists(jobs, min_size=1, max_size=6))
def test_the_victims_are_those_that_trying_after_each_would_find(running: list[Run], waiting: list[Job]) -> None:
    quick = world(running, waiting).cycle().plan
    with pytest.MonkeyPatch.context() as patch:
        for shortcut in ("_has_node", "could_ever_fit", "may_have_helped"):
            patch.setattr(WhatIf, shortcut, lambda *_: True)
        whole = world(running, waiting).cycle().plan
    assert starts(quick) == starts(whole)
    assert quick.reasons == whole.reasons
