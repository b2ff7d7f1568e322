"""A month in which users come and go, against an ideal that divides the capacity at each moment exactly by the shares.

    python -m bench.fair_shares [--days 30] [--cores 64] [--seed 1]

Six users in three queues of different weights are there for a day on average, and away as long; while they are there, each
submits jobs of 1 to 4 cores and 5 to 60 minutes, in all 1.3 times what the cluster can do. The scheduler decides in simulated
time, without time limits and, except in ``reclaiming``, without preemption. The ideal is the fluid one of generalized processor
sharing (Parekh and Gallager, IEEE/ACM Transactions on Networking 1993), by the tree: the capacity is divided by weight between the
queues with work, and in a queue between its users with work; nobody gets more cores than the jobs that wait can use. It has as much
capacity as the runs in the same minute really used, so that only its division is compared. ``largest_lag``: the most core-hours by
which a user's runs were ever behind the ideal; ``behind``: the same in hours of the user's part of the cluster when all are there.
Without preemption no scheduler can be closer than what ends meanwhile: with runs of an hour at most, about an hour. ``users`` is as
shipped; ``none`` has ``fairBy: none``, the order of arrival in each queue. In ``reclaiming`` the queues are guaranteed their parts of
the cluster and take them back from others by preemption: ``preempted`` is the number of runs that were ended for others, ``wasted``
the part of all core-hours that these runs had used, as none saves its state.
"""

import argparse
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainmaster.fake_cluster.fleet import Fleet, FleetCluster, FleetGroup
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.quota import QuotaSpec
from trainmaster.protocol.states import FairBy, RunState
from trainmaster.protocol.tenants import QueueSpec
from trainmaster_dispatcher.whatif.engine import Declared, Simulation, StudiedJob
from trainmaster_dispatcher.whatif.trace import Trace, TraceJob

QUEUES: Mapping[str, float] = {"research": 2.0, "product": 1.0, "students": 1.0}
USERS: Mapping[str, tuple[str, float]] = {
    "ann": ("research", 1.0),
    "ben": ("research", 3.0),
    "cleo": ("product", 1.0),
    "dan": ("students", 1.0),
    "eve": ("students", 1.0),
    "finn": ("students", 1.0),
}
"""By user: the queue, and the weight there."""
_DAY, _STEP = 86_400.0, 60.0
_LOAD = 1.3
_WIDTHS, _SECONDS = (1, 2, 4), (300, 3600)


def trace_of(days: float, cores: int, seed: int) -> Trace:
    """Return the jobs of all users."""
    chance = random.Random(seed)
    specs = {(queue, width): _spec(queue, width) for queue in QUEUES for width in _WIDTHS}
    mean_work = sum(_WIDTHS) / len(_WIDTHS) * sum(_SECONDS) / 2
    each = _LOAD * cores / mean_work / (len(USERS) / 2)
    jobs: list[TraceJob] = []
    for user, (queue, _) in USERS.items():
        at, is_there = 0.0, chance.random() < 0.5
        while at < days * _DAY:
            until = min(at + chance.expovariate(1 / _DAY), days * _DAY)
            while is_there and (at := at + chance.expovariate(each)) < until:
                spec = specs[queue, chance.choice(_WIDTHS)]
                jobs.append(TraceJob(0, round(at), chance.randint(*_SECONDS), spec, user=user))
            at, is_there = until, not is_there
    jobs.sort(key=lambda job: job.submit)
    numbered = [TraceJob(n, job.submit, job.run, job.spec, user=job.user) for n, job in enumerate(jobs, 1)]
    return Trace("a month", tuple(numbered))


def _spec(queue: str, width: int) -> JobSpec:
    template = {"image": "simulated", "command": ["true"], "resources": {"cpu": str(width)}}
    return JobSpec.model_validate(
        {
            "name": "job",
            "queue": queue,
            "labels": {"sim.trainmaster.dev/run-time": "forever"},
            "roles": [{"name": "main", "template": template}],
        }
    )


def width_of(job: TraceJob) -> int:
    template = job.spec.roles[0].template
    assert template is not None
    return int(template.resources["cpu"])


@dataclass(slots=True)
class _Backlog:
    """The work of a user in the ideal, job by job in the order of arrival."""

    jobs: list[tuple[int, float]] = field(default_factory=list)
    """Cores, and core-seconds that are left."""
    first: int = 0
    width: int = 0
    """The cores that the jobs left can use."""

    def add(self, cores: int, work: float) -> None:
        self.jobs.append((cores, work))
        self.width += cores

    def serve(self, work: float) -> None:
        while work > 0.0 and self.first < len(self.jobs):
            cores, left = self.jobs[self.first]
            if left > work:
                self.jobs[self.first] = cores, left - work
                return
            work -= left
            self.width -= cores
            self.first += 1


def divided(amount: float, wants: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Divide an amount by weight between those that want some, none getting more than wanted. ``wants``: weight and the most."""
    got: dict[str, float] = {}
    left = {name: one for name, one in wants.items() if one[1] > 0.0}
    while left:
        level = amount / sum(weight for weight, _ in left.values())
        full = [name for name, (weight, most) in left.items() if most <= level * weight]
        for name in full:
            got[name] = left.pop(name)[1]
            amount -= got[name]
        if not full:
            return got | {name: level * weight for name, (weight, _) in left.items()}
    return got


def ideal(trace: Trace, used: Sequence[float]) -> Iterator[dict[str, float]]:
    """Yield, for each minute, the core-seconds that each user has had up to its end. ``used``: those to divide in each minute."""
    backlogs, served = {user: _Backlog() for user in USERS}, dict.fromkeys(USERS, 0.0)
    following, at = 0, 0.0
    for there in used:
        while following < len(trace.jobs) and trace.jobs[following].submit <= at:
            job = trace.jobs[following]
            backlogs[job.user].add(width_of(job), width_of(job) * job.run)
            following += 1
        wants = {user: (USERS[user][1], float(one.width)) for user, one in backlogs.items()}
        of_queue = {
            queue: (weight, sum(wants[user][1] for user in USERS if USERS[user][0] == queue))
            for queue, weight in QUEUES.items()
        }
        for queue, rate in divided(there / _STEP, of_queue).items():
            for user, part in divided(rate, {u: wants[u] for u in USERS if USERS[u][0] == queue}).items():
                backlogs[user].serve(part * _STEP)
                served[user] += part * _STEP
        at += _STEP
        yield dict(served)


def real(records: Sequence[StudiedJob], seconds: float) -> dict[str, list[float]]:
    """Return, by user, the core-seconds of the user's runs up to the end of each minute."""
    steps = int(seconds / _STEP)
    out = {user: [0.0] * (steps + 1) for user in USERS}
    for record in records:
        cores, of = width_of(record.job), out[record.job.user]
        for stay in record.stays:
            first, last = int(stay.placed_at / _STEP), min(int(stay.ended_at / _STEP), steps)
            for step in range(first, last + 1):
                inside = min(stay.ended_at, (step + 1) * _STEP) - max(stay.placed_at, step * _STEP)
                of[min(step, steps)] += cores * max(inside, 0.0)
    for amounts in out.values():
        for step in range(1, len(amounts)):
            amounts[step] += amounts[step - 1]
    return out


def measured(trace: Trace, fair_by: FairBy, cores: int, days: float, *, reclaims: bool = False) -> dict[str, Any]:
    """Return the lags of all users under one rule. ``reclaims``: queues are guaranteed their parts, and take them back."""
    every = sum(QUEUES.values())
    queues = [
        QueueSpec(
            path=queue,
            weight=weight,
            resources={"cpu": QuotaSpec(guaranteed=str(int(cores * weight / every)))} if reclaims else {},
            fair_by=fair_by,
            user_weights={user: part for user, (of, part) in USERS.items() if of == queue},
        )
        for queue, weight in QUEUES.items()
    ]
    nodes = FleetGroup(name="nodes", count=cores // 8, resources={"cpu": "8"})
    outcome = Simulation(Fleet(clusters=(FleetCluster(name="one", groups=(nodes,)),)), Declared(queues=queues)).run(
        trace
    )
    seconds = days * _DAY
    had, lags = real(outcome.records, seconds), dict.fromkeys(USERS, 0.0)
    whole = [sum(amounts) for amounts in zip(*had.values(), strict=True)]
    used = [now - before for before, now in zip([0.0, *whole], whole, strict=False)]
    for step, served in enumerate(ideal(trace, used[: int(seconds / _STEP)])):
        for user, amount in served.items():
            lags[user] = max(lags[user], amount - had[user][step])
    parts = _parts(cores)
    preempted = [
        (width_of(record.job) * (stay.ended_at - stay.placed_at))
        for record in outcome.records
        for stay in record.stays
        if stay.state is RunState.PREEMPTED
    ]
    lost: dict[str, Any] = (
        {"preempted": len(preempted), "wasted": round(sum(preempted) / whole[-1], 4)} if reclaims else {}
    )
    return lost | {
        user: {
            "core_hours": round(had[user][-1] / 3600),
            "largest_lag": round(lag / 3600, 1),
            "behind": round(lag / 3600 / parts[user], 2),
        }
        for user, lag in lags.items()
    }


def _parts(cores: int) -> dict[str, float]:
    """Return the cores of each user when all are there."""
    of_queue = divided(cores, {queue: (weight, float(cores)) for queue, weight in QUEUES.items()})
    out: dict[str, float] = {}
    for queue, amount in of_queue.items():
        out |= divided(amount, {user: (part, amount) for user, (of, part) in USERS.items() if of == queue})
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=float, default=30.0)
    parser.add_argument("--cores", type=int, default=64, help="a multiple of 8")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    trace = trace_of(options.days, options.cores, options.seed)
    found = {
        "users": measured(trace, FairBy.USER, options.cores, options.days),
        "none": measured(trace, FairBy.NONE, options.cores, options.days),
        "reclaiming": measured(trace, FairBy.USER, options.cores, options.days, reclaims=True),
    }
    print(json.dumps({"bench": "fair_shares", "jobs": len(trace.jobs), "cores": options.cores, **found}, indent=2))


if __name__ == "__main__":
    main()
