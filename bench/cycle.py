"""The scheduler's cycle: how fast it decides, how long it takes at its worst, and what a million queued jobs weigh.

    python -m bench.cycle [--cases standard,blocked] [--scale 0.1] [--seconds 120] [--profile]

The leader's own steps run on states of made-up worlds (``bench.worlds``), each case in a process of its own and without a store:
take in what has changed, ``decide``, compare the reasons with those of the cycle before, put the starts into the state. Only jobs
that start count as decisions; their rate is starts by the seconds of deciding and putting, of all cycles in which something
starts. ``jobs_covered_per_second`` also counts the waiting jobs that were given a reason, other than that they were not looked at.
Cycles go on until nothing starts, or for ``--seconds``; what is under way then is cut off and counts as a cycle of that length.

The case ``store`` has its jobs in Postgres: the time from nothing to the whole state, and that from the death of the leading of
two scheduler processes to the first decision after it. Floors are beside the figures; a smaller ``--scale`` has none to hold.
"""

import argparse
import asyncio
import cProfile
import gc
import json
import pstats
import signal
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import orjson
import psutil

from bench.numbers import quantile, stores
from bench.stage import PROGRAM, Stage
from bench.worlds import NOW, ROLE, Changes, Kind, Size, World, gangs, make, make_kinds, popularity, reclaim_storm
from trainmaster.protocol.errors import ProblemError
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.reasons import Tier
from trainmaster_dispatcher.cli.embedded import free_port
from trainmaster_dispatcher.cli.up import Child
from trainmaster_dispatcher.domain.shapes import shape_bytes
from trainmaster_dispatcher.scheduler.gc_tuning import GcTuning
from trainmaster_dispatcher.scheduling.cycle.decide import MOST_STARTS, decide
from trainmaster_dispatcher.scheduling.state.jobs import ClassKey
from trainmaster_dispatcher.scheduling.state.plan import Plan
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.feed_follower import Applied, Follower
from trainmaster_dispatcher.services.reason_book import ReasonBook
from trainmaster_dispatcher.services.settings import Settings

GIGABYTE = 1e9

_CHANGES = 100
_REPEATED = 20
_STIRRED = 10
_HOT = 30
"""Functions that a profile shows."""
_TAKE_OVERS = 3
_MOST_WAIT = 600.0


class Target(NamedTuple):
    """What a figure has to reach, and what it should."""

    figure: str
    at_least: float | None = None
    at_most: float | None = None
    aim: float | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """A world and how it is measured. ``stirred``: some cycles in which nothing starts, with a few changes before each."""

    size: Size
    world: Callable[[Size], World]
    targets: tuple[Target, ...] = ()
    stirred: bool = False


_RATE = Target("decisions_per_second", at_least=20_000, aim=50_000)
_MEMORY = Target("rss_bytes", at_most=1.5 * GIGABYTE, aim=0.7 * GIGABYTE)

WORLDS = {
    "standard": Case(Size(), partial(make, own_kinds=True), (_RATE, _MEMORY)),
    "mixed": Case(Size(), make, (_RATE, _MEMORY)),
    "one_queue": Case(Size(queues=1), make, (_RATE, _MEMORY)),
    "distinct": Case(Size(), partial(make, all_distinct=True), (Target("decisions_per_second", at_least=2000),)),
    "blocked": Case(Size(), partial(make, full=True), (Target("cycle_max_seconds", at_most=2.0),), stirred=True),
    "gangs": Case(
        Size(jobs=10_000, queues=100, kinds=10, groups=37, starts=5000),
        gangs,
        (Target("cycles_seconds", at_most=10.0),),
    ),
    "reclaim": Case(
        Size(jobs=2500, queues=20, kinds=10, clusters=10, groups=10, starts=10_000),
        reclaim_storm,
        (Target("cycles_seconds", at_most=10.0),),
    ),
}
"""In ``standard`` the 1,000 kinds come from one queue each, so there are 1,000 classes. In ``mixed`` every queue has
jobs of all kinds: there are some hundred thousand classes, and equivalent jobs hardly ever follow one another."""


class TimeIsOver(BaseException):
    """Raised wherever the measured code is at that moment."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """End the block after ``seconds``."""

    def over(*_: object) -> None:
        raise TimeIsOver

    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        with suppress(TimeIsOver):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def profiled(on: bool) -> Iterator[None]:
    """Profile the block and print the hottest functions to stderr. Calls cost more under it, so seconds are not comparable."""
    if not on:
        yield
        return
    with cProfile.Profile() as profile:
        yield
    pstats.Stats(profile, stream=sys.stderr).strip_dirs().sort_stats("tottime").print_stats(_HOT)


class Lap(NamedTuple):
    """One cycle: its parts in seconds, and how many jobs start."""

    take_in: float
    decide: float
    reasons: float
    put: float
    starts: int

    @property
    def seconds(self) -> float:
        return self.take_in + self.decide + self.reasons + self.put


PARTS = ("take_in", "decide", "reasons", "put")


def rate(laps: Sequence[Lap], cut_seconds: float = 0.0) -> float:
    """Return starts by the seconds of deciding on them and putting them into the state."""
    seconds = sum(lap.decide + lap.put for lap in laps) + cut_seconds
    return round(sum(lap.starts for lap in laps) / seconds, 1) if seconds else 0.0


@dataclass(slots=True)
class Leader:
    """The leader's cycle without its store."""

    world: World
    laps: list[Lap] = field(default_factory=list)
    evicted: int = 0
    covered: int = 0
    cpu_seconds: float = 0.0
    cut_seconds: float | None = None
    """How long a cycle had lasted when the time was over."""
    _now: float = NOW
    _began: float | None = None
    _ending: set[int] = field(default_factory=set)
    _book: ReasonBook = field(default_factory=ReasonBook)
    _gc_tuning: GcTuning = field(default_factory=GcTuning)
    _follower: Follower = field(init=False)
    _waiting: Counter[ClassKey] = field(init=False)

    def __post_init__(self) -> None:
        state = self.world.state
        self._follower = Follower(engine=self.world.engine)
        self._waiting = Counter(state.class_of(job_id) for job_id in state.jobs)

    def cycle(self, changes: Changes) -> Plan:
        """Run one cycle, one second after the previous one."""
        state = self.world.state
        self._now += 1.0
        # The runs that were preempted have ended by now.
        changes.ended += sorted(self._ending)
        self._began = began = time.perf_counter()
        changes.put(state)
        for cluster_id in state.clusters:
            state.lease_until[cluster_id] = self._now + 15
        state.sweep()
        state.set_avoided({})
        self._gc_tuning.look(state)
        taken_in = time.perf_counter()
        self._waiting.update(state.class_of(job.id) for job in changes.submitted)
        decision_began = time.perf_counter()
        plan = decide(self._follower.engine, self._now)
        decided = time.perf_counter()
        self._book.note(plan, self._book.changed(plan, self._now), self._now)
        compared = time.perf_counter()
        self._ending = self._count(plan)
        counted = time.perf_counter()
        self._follower.engine.carry_over(plan)
        self._follower.note_applied(plan, Applied({job.id for job in plan.jobs}, self._ending, self._now))
        put = time.perf_counter()
        self._began = None
        self.laps.append(
            Lap(taken_in - began, decided - decision_began, compared - decided, put - counted, len(plan.starts))
        )
        return plan

    def _count(self, plan: Plan) -> set[int]:
        """Count what a plan covers; return the jobs whose runs it ends."""
        decided = [self.world.state.class_of(job.id) for job in plan.jobs]
        self._waiting.subtract(decided)
        ending = {one.job_id for one in plan.stops}.union(one.job_id for start in plan.starts for one in start.evicts)
        self.evicted += len(ending)
        looked_at = (key for key, reason in plan.reasons.items() if reason.tier is not Tier.UNSEEN)
        self.covered += len(decided) + sum(self._waiting[key] for key in looked_at)
        return ending

    def go_on(
        self, seconds: float, before: Callable[[], Changes], *, until_settled: bool, most: int = 1_000_000
    ) -> bool:
        """Run cycles until nothing starts, or ``most`` of them; return whether that was reached before the time was over."""
        ended = False
        cpu = time.process_time()
        with at_most(seconds):
            for _ in range(most):
                changes = before()
                plan = self.cycle(changes)
                if until_settled and not plan.jobs and not plan.stops:
                    break
            ended = True
        self.cpu_seconds += time.process_time() - cpu
        if self._began is not None:
            self.cut_seconds = time.perf_counter() - self._began
        return ended

    def figures(self) -> dict[str, Any]:
        cut = [] if self.cut_seconds is None else [self.cut_seconds]
        whole = [lap.seconds for lap in self.laps] + cut
        return {
            "cycles": len(self.laps),
            "cut_cycle_seconds": self.cut_seconds and round(self.cut_seconds, 3),
            "starts": sum(lap.starts for lap in self.laps),
            "evicted_runs": self.evicted,
            "decisions_per_second": rate([lap for lap in self.laps if lap.starts], sum(cut)),
            "decisions_per_second_in_full_plans": rate([lap for lap in self.laps if lap.starts >= MOST_STARTS]),
            **{f"{part}_seconds": round(sum(getattr(lap, part) for lap in self.laps), 3) for part in PARTS},
            "cycles_seconds": round(sum(whole), 3),
            "cpu_seconds": round(self.cpu_seconds, 3),
            "cycle_first_seconds": round(whole[0], 4),
            "cycle_p50_seconds": round(quantile(whole, 0.5), 4),
            "cycle_max_seconds": round(max(whole), 4),
            "jobs_covered_per_second": round(self.covered / sum(whole), 1),
        }


def rss_bytes() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def built(make_world: Callable[[Size], World], size: Size) -> tuple[Leader, dict[str, Any]]:
    """Return a leader in a new world, and the cost of building it."""
    before, began = rss_bytes(), time.perf_counter()
    world = make_world(size)
    seconds = time.perf_counter() - began
    figures = {
        "queued": len(world.state.jobs),
        "live_runs": len(world.state.runs),
        "build_seconds": round(seconds, 2),
        "rss_before_bytes": before,
        "rss_built_bytes": rss_bytes(),
    }
    leader = Leader(world)
    return leader, figures | {"classes": len({world.state.class_of(job_id) for job_id in world.state.jobs})}


def run_world(name: str, scale: float, seconds: float, profile: bool) -> dict[str, Any]:
    """Run one case, in this process."""
    case = WORLDS[name]
    leader, figures = built(case.world, case.size.scaled(scale))
    changes = partial(leader.world.happens, NOW, submits=_CHANGES, reports=len(leader.world.state.clusters) // 10)
    with profiled(profile):
        if case.stirred:
            leader.go_on(seconds, changes, until_settled=False, most=_STIRRED)
        else:
            leader.go_on(seconds, Changes, until_settled=True)
    return figures | leader.figures() | {"rss_bytes": rss_bytes()}


def run_changes(queued: int, scale: float, seconds: float, profile: bool) -> dict[str, Any]:
    """Measure cycles with 100 changes each once a full world has settled: half of them ends of runs, half submissions."""
    leader, figures = built(partial(make, full=True), replace(Size().scaled(scale), jobs=queued))
    if not leader.go_on(seconds, Changes, until_settled=True):
        return figures | {"not_measured": f"not settled within {seconds:.0f} s"}
    settled = len(leader.laps)
    half, cpu = _CHANGES // 2, leader.cpu_seconds
    with profiled(profile):
        leader.go_on(
            seconds,
            lambda: leader.world.happens(NOW, ends=half, submits=half),
            until_settled=False,
            most=_REPEATED,
        )
    laps = leader.laps[settled:]
    if not laps:
        return figures | {"not_measured": f"no cycle with changes within {seconds:.0f} s"}
    parts = {part: round(quantile([getattr(lap, part) for lap in laps], 0.5), 5) for part in PARTS}
    whole = [lap.seconds for lap in laps]
    return figures | {
        "cycles": len(laps),
        "cpu_seconds": round(leader.cpu_seconds - cpu, 3),
        "starts": sum(lap.starts for lap in laps),
        "evicted_runs": leader.evicted,
        "cycle_p50_seconds": round(quantile(whole, 0.5), 5),
        "cycle_max_seconds": round(max(whole), 5),
        "p50_seconds_by_part": parts,
    }


def apart(function: Callable[..., dict[str, Any]], *arguments: object) -> dict[str, Any]:
    """Return what a function returns in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def compare_changes(scale: float, seconds: float, profile: bool) -> dict[str, Any]:
    """Run the same changes at ten thousand and at a million queued jobs, all else being equal."""
    small, large = (apart(run_changes, round(jobs * scale), scale, seconds, profile) for jobs in (10_000, 1_000_000))
    figures: dict[str, Any] = {"small": small, "large": large}
    if "cycle_p50_seconds" in small and "cycle_p50_seconds" in large:
        figures["ratio_of_medians"] = round(large["cycle_p50_seconds"] / small["cycle_p50_seconds"], 2)
    return figures


# -- with a store

_CLUSTERS = 10
_RUN_TIME = "1s-40s"
_COLUMNS = "id, spec_id, name, queue_id, class_id, priority, shape_id, api_key_id, state, submitted_at"


def fleet() -> list[dict[str, Any]]:
    """Return clusters of 20 nodes: full, with some 80 runs that end each second, so that there is always something to decide."""
    group = {"name": "nodes", "count": 20, "resources": {"cpu": "32", "memory": "160Gi"}}
    return [{"name": f"c{number}", "groups": [group]} for number in range(_CLUSTERS)]


def queue_paths(leaves: int) -> list[str]:
    """Return the paths; every 25 leaves are below one queue, which comes first."""
    paths = [f"org{number // 25}/team{number % 25}" for number in range(leaves)]
    return sorted({path.partition("/")[0] for path in paths}) + paths


def spec_of(kind: Kind) -> dict[str, Any]:
    resources = {name: f"{amount}m" if name == "cpu" else str(amount) for name, amount in kind.needs.items()}
    template = {"image": "registry.example/any:1", "env": {"SIM_RUN_TIME": _RUN_TIME}, "resources": resources}
    spec: dict[str, Any] = {"kind": "Job", "name": "job", "queue": "org0/team0"}
    limit = {"timeLimit": f"{kind.time_limit:.0f}s"} if kind.time_limit else {}
    return spec | limit | {"roles": [{"name": ROLE, "replicas": kind.members, "template": template}]}


def insert(stage: Stage, size: Size) -> None:
    """Insert jobs of all kinds in all queues, as one COPY; those of one kind share their specification, as parameter sets do."""
    chance = Random(size.seed)
    kinds = make_kinds(size.kinds, chance, devices=False)
    with stage.sql() as connection, connection.transaction():
        leaves = [row[0] for row in connection.execute("SELECT id FROM queues WHERE parent_id IS NOT NULL ORDER BY id")]
        classes = [row[0] for row in connection.execute("SELECT id FROM priority_classes ORDER BY value")]
        shapes, specs = [], []
        for kind in kinds:
            spec = spec_of(kind)
            body, fingerprint = shape_bytes(JobSpec.model_validate(spec))
            insert_shape = "INSERT INTO shapes (hash, body) VALUES (%s, %s::jsonb) RETURNING id"
            shapes += [row[0] for row in connection.execute(insert_shape, (fingerprint, body.decode()))]
            insert_spec = "INSERT INTO job_specs (spec) VALUES (%s::jsonb) RETURNING id"
            specs += [row[0] for row in connection.execute(insert_spec, (orjson.dumps(spec).decode(),))]
        picked = chance.choices(range(len(kinds)), cum_weights=popularity(len(kinds)), k=size.jobs)
        with connection.cursor() as cursor, cursor.copy(f"COPY jobs ({_COLUMNS}) FROM STDIN") as copy:
            for key, number in enumerate(picked, start=1):
                class_id = classes[kinds[number].class_id - 1]
                at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 100_000 + key / 100))
                queue_id, spec_id, shape_id = chance.choice(leaves), specs[number], shapes[number]
                copy.write_row((key, spec_id, f"job-{key}", queue_id, class_id, 0, shape_id, 1, "queued", at))
        connection.execute("SELECT setval('jobs_id_seq', %s)", (size.jobs,))
    with stage.sql() as connection:
        connection.execute("ANALYZE")


def root_of(error: BaseException) -> BaseException:
    """Return the first cause of an error."""
    while (deeper := error.__cause__ or error.__context__) is not None:
        error = deeper
    return error


async def cold_start(url: str) -> dict[str, Any]:
    """Measure a state from nothing, in this process; then an absorb that finds nothing new, and the first plan. Return
    the error instead if one occurs."""
    stores = Stores.open(Settings.model_validate({"database_url": url}))
    follower, before = Follower(), rss_bytes()
    began = time.perf_counter()
    try:
        await follower.absorb(stores, time.monotonic())
    except ProblemError as error:
        await stores.close()
        return {"cold_start_error": f"after {time.perf_counter() - began:.1f} s: {root_of(error)!r}"}
    loaded = time.perf_counter()
    await follower.absorb(stores, time.monotonic())
    looked = time.perf_counter()
    plan = decide(follower.engine, time.monotonic() + follower.ahead)
    decided = time.perf_counter()
    await stores.close()
    return {
        "queued": len(follower.state.jobs),
        "cold_start_seconds": round(loaded - began, 2),
        "look_without_news_seconds": round(looked - loaded, 4),
        "first_decide_seconds": round(decided - looked, 3),
        "first_starts": len(plan.starts),
        "rss_before_bytes": before,
        "rss_bytes": rss_bytes(),
    }


def has_absorbed(port: int) -> bool:
    """Return whether a scheduler has the whole state, by its own metrics."""
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("trainmaster_absorb_seconds_count"):
                return float(line.split()[-1]) > 0
    return False


def wait_until(true: Callable[[], object], what: str, every: float = 0.2) -> None:
    """Wait until ``true`` returns a true value. Raises TimeoutError."""
    began = time.monotonic()
    while not true():
        if time.monotonic() - began > _MOST_WAIT:
            raise TimeoutError(f"{what} did not happen within {_MOST_WAIT:.0f} s")
        time.sleep(every)


def take_over(stage: Stage, ports: dict[str, int]) -> dict[str, Any]:
    """Kill the leader as soon as both schedulers have the state and decisions are made; return what followed."""
    with stage.sql() as connection:

        def one(sql: str, *values: object) -> Any:
            row = connection.execute(sql, values).fetchone()
            return row[0] if row else None

        def decided_since(at: object) -> bool:
            # A transaction of the dead leader that commits only now began before its death.
            return bool(one("SELECT EXISTS (SELECT 1 FROM runs WHERE leased_at > %s)", at))

        def leading() -> Child | None:
            holder = str(one("SELECT holder FROM leadership WHERE expires_at > now()"))
            children = [stage.children[name] for name in ports]
            return next((each for each in children if each.process and holder.endswith(f":{each.process.pid}")), None)

        wait_until(lambda: all(has_absorbed(port) for port in ports.values()), "the whole state in both schedulers")
        start = one("SELECT clock_timestamp()")
        wait_until(lambda: decided_since(start), "a decision")
        while (child := leading()) is None:
            time.sleep(0.05)
        token = one("SELECT token FROM leadership")
        assert child.process is not None
        began = time.monotonic()
        child.process.kill()
        child.process.wait()
        killed = one("SELECT clock_timestamp()")
        wait_until(lambda: decided_since(killed), "a decision of the standby", every=0.01)
        seconds = time.monotonic() - began
        memory = stage.rss_bytes()
        child.start()
        return {
            "seconds": round(seconds, 3),
            "leads_taken_before": token,
            "leads_taken_after": one("SELECT token FROM leadership"),
            "standby_rss_bytes": max(value for name, value in memory.items() if name in ports),
        }


def run_store(scale: float) -> dict[str, Any]:
    """Measure cold start and take-over with the standard number of jobs, queues and kinds in Postgres."""
    size = Size().scaled(scale)
    with tempfile.TemporaryDirectory(prefix="trainmaster-bench-") as folder:
        stage = Stage(Path(folder), fleet(), schedulers=0, queues=queue_paths(size.queues))
        try:
            stage.start()
            began = time.perf_counter()
            insert(stage, size)
            figures: dict[str, Any] = {"insert_seconds": round(time.perf_counter() - began, 1)}
            figures |= apart(run_cold_start, stage.database_url)
            figures["stores"] = stores(stage.database_url)
            if "cold_start_error" in figures:
                return figures
            ports = {f"scheduler-{number}": free_port() for number in range(2)}
            for name, port in ports.items():
                stage.add(name, [*PROGRAM, "scheduler", "--metrics-port", str(port)])
            try:
                figures["take_overs"] = [take_over(stage, ports) for _ in range(_TAKE_OVERS)]
                figures["take_over_max_seconds"] = max(one["seconds"] for one in figures["take_overs"])
            except TimeoutError as error:
                figures["take_over_error"] = str(error)
            return figures
        finally:
            stage.stop()


def run_cold_start(url: str) -> dict[str, Any]:
    return asyncio.run(cold_start(url))


# -- all of it

COMPARED = (Target("ratio_of_medians", at_most=2.0, aim=1.2),)
STORED = (
    Target("cold_start_seconds", at_most=60.0),
    Target("take_over_max_seconds", at_most=5.0, aim=2.0),
    _MEMORY,
)


def beside(figures: dict[str, Any], targets: Sequence[Target], scale: float) -> dict[str, Any]:
    """Return the figures with their targets; whether a target holds is stated at full size only. It does not if the
    figure is missing."""
    checked = {}
    for target in targets:
        value = figures.get(target.figure)
        bounds = {name: bound for name, bound in target._asdict().items() if name != "figure" and bound is not None}
        least, most = target.at_least, target.at_most
        holds = None
        if scale >= 1 and "not_measured" not in figures:
            holds = value is not None and (least is None or value >= least) and (most is None or value <= most)
        checked[target.figure] = {"measured": value, **bounds, "holds": holds}
    return figures | {"floors": checked}


def measure(name: str, scale: float, seconds: float, profile: bool) -> dict[str, Any]:
    if name == "changes":
        return beside(compare_changes(scale, seconds, profile), COMPARED, scale)
    if name == "store":
        return beside(run_store(scale), STORED, scale)
    return beside(apart(run_world, name, scale, seconds, profile), WORLDS[name].targets, scale)


def main() -> None:
    names = [*WORLDS, "changes", "store"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(names), help="with commas between: %(default)s")
    parser.add_argument("--scale", type=float, default=1.0, help="of all sizes")
    parser.add_argument("--seconds", type=float, default=120.0, help="for the cycles of a case")
    parser.add_argument("--profile", action="store_true", help="tell the hottest functions of the cycles to stderr")
    options = parser.parse_args()
    wanted = options.cases.split(",")
    unknown = sorted(set(wanted) - set(names))
    if unknown:
        parser.error(f"no case {unknown[0]!r}; there are {', '.join(names)}")
    cases = {}
    for name in wanted:
        print(f"{name} ...", file=sys.stderr, flush=True)
        cases[name] = measure(name, options.scale, options.seconds, options.profile)
        print(json.dumps(cases[name]), file=sys.stderr, flush=True)
    print(json.dumps({"bench": "cycle", "scale": options.scale, "cases": cases}, indent=2))


if __name__ == "__main__":
    main()
