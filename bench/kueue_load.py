"""The scenarios of Kueue's scheduler benchmark, and a generator that submits workloads when they are due, however slow the system is.

Source: ``test/performance/scheduler`` of kubernetes-sigs/kueue. Its cohorts are our parent queues, its ClusterQueues the queues below
them, its workloads jobs of one member. Cohorts have no nodes there: only quota is counted, so here each has a cluster of one node
with as much as is guaranteed to its queues, and nothing is lost by packing.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from bench.posting import Poster, RefusedError

GUARANTEED_CPUS = 20
"""Of each queue, its nominal quota."""
BORROWED_CPUS = 100
"""The most that a queue uses beyond them."""
TICK_MS = 20
"""What is due within one tick is submitted together at its end."""
JOBS_PER_CALL = 100
"""The most jobs in one call, as in ``bench.flow``; more jobs that are due together go in several calls."""
MOST_CONNECTIONS = 512
"""More than there are calls in the large scenario, so that none ever waits for another one's answer."""
_MOST_TRIES, _TRY_SECONDS = 50, 0.2


@dataclass(frozen=True, slots=True)
class WorkloadClass:
    """Equivalent workloads: each queue gets ``count`` of them, the first after ``every_ms`` and then one every ``every_ms``."""

    name: str
    cpus: int
    run_ms: int
    every_ms: int
    count: int
    priority: int

    @property
    def cpu_seconds(self) -> float:
        """The CPU seconds of one workload."""
        return self.cpus * self.run_ms / 1000


@dataclass(frozen=True, slots=True)
class Published:
    """What Kueue's own benchmark came to. Their wall time is that of the whole process that schedules."""

    wall_seconds: float
    used_share: float | None = None
    """Of the quota, as they count it: a workload uses it until its end has been seen, not only while it runs."""
    mean_time_to_admit_seconds: Mapping[str, float] = field(default_factory=dict)
    """By class of workloads, from when their observer saw it created."""


class Workload(NamedTuple):
    """One job of a scenario. ``due_ms`` counts from the start of the load."""

    number: int
    cohort: str
    queue: str
    kind: WorkloadClass
    due_ms: int


@dataclass(frozen=True, slots=True)
class Scenario:
    """Equivalent cohorts, each of equivalent queues."""

    name: str
    cohorts: int
    queues: int
    """Of each cohort."""
    classes: tuple[WorkloadClass, ...]
    published: Published

    @property
    def cohort_names(self) -> list[str]:
        return [f"cohort-{number}" for number in range(self.cohorts)]

    @property
    def cohort_cpus(self) -> int:
        """Capacity of a cohort: what is guaranteed to its queues."""
        return self.queues * GUARANTEED_CPUS

    @property
    def capacity_cpus(self) -> int:
        return self.cohorts * self.cohort_cpus

    @property
    def cpu_seconds(self) -> float:
        """The work of all workloads."""
        return self.cohorts * self.queues * sum(one.count * one.cpu_seconds for one in self.classes)

    @property
    def first_due_seconds(self) -> float:
        return min(one.every_ms for one in self.classes) / 1000

    def queue_paths(self) -> Iterator[str]:
        """Yield the paths of the queues that take jobs."""
        for cohort in self.cohort_names:
            for number in range(self.queues):
                yield f"{cohort}/queue-{number}"

    def workloads(self) -> list[Workload]:
        """Return all workloads in the order in which they are due; they are numbered from 0 in that order."""
        dues = sorted(
            (position * one.every_ms, index)
            for index, one in enumerate(self.classes)
            for position in range(1, one.count + 1)
        )
        paths = list(self.queue_paths())
        places = ((due_ms, index, path) for due_ms, index in dues for path in paths)
        return [
            Workload(number, path.partition("/")[0], path, self.classes[index], due_ms)
            for number, (due_ms, index, path) in enumerate(places)
        ]

    def least_wall_seconds(self) -> float:
        """Return the least time from the first workload's due time to the last end that arrivals and work allow.

        No schedule can be faster: a workload ends no sooner than its run time after it is due, and work that is due
        from some moment on takes at least its CPU time divided by the whole capacity. All cohorts are equivalent, so
        one of them is enough.
        """
        work: dict[int, float] = defaultdict(float)
        ends = 0.0
        for one in self.classes:
            for position in range(1, one.count + 1):
                work[position * one.every_ms] += self.queues * one.cpu_seconds
            ends = max(ends, (one.count * one.every_ms + one.run_ms) / 1000)
        left = sum(work.values())
        for due_ms in sorted(work):
            ends = max(ends, due_ms / 1000 + left / self.cohort_cpus)
            left -= work[due_ms]
        return ends - self.first_due_seconds

    def share_of_capacity(self, cpu_seconds: float, wall_seconds: float) -> float:
        """Return the part of the whole capacity over ``wall_seconds`` that ``cpu_seconds`` is."""
        return cpu_seconds / (self.capacity_cpus * wall_seconds)


BASELINE = Scenario(
    name="baseline",
    cohorts=5,
    queues=6,
    classes=(
        WorkloadClass("small", cpus=1, run_ms=200, every_ms=100, count=350, priority=50),
        WorkloadClass("medium", cpus=5, run_ms=500, every_ms=500, count=100, priority=100),
        WorkloadClass("large", cpus=20, run_ms=1000, every_ms=1200, count=50, priority=200),
    ),
    published=Published(351.0, 0.56, {"large": 16.0, "medium": 77.0, "small": 216.0}),
)
LARGE_SCALE = Scenario(
    name="large-scale",
    cohorts=10,
    queues=100,
    classes=(
        WorkloadClass("small", cpus=1, run_ms=150, every_ms=60, count=35, priority=50),
        WorkloadClass("medium", cpus=5, run_ms=350, every_ms=300, count=11, priority=100),
        WorkloadClass("large", cpus=20, run_ms=700, every_ms=700, count=4, priority=200),
    ),
    published=Published(1179.0),
)
SCENARIOS = {scenario.name: scenario for scenario in (BASELINE, LARGE_SCALE)}


def spec(workload: Workload) -> dict[str, Any]:
    """Return the job. It names its cohort's cluster: cohorts do not share. ``ITEM`` identifies it in the store."""
    template = {
        "image": "registry.example/tiny:1",
        "command": ["python", "-m", "tiny"],
        "env": {"ITEM": str(workload.number), "SIM_RUN_TIME": f"{workload.kind.run_ms}ms"},
        "resources": {"cpu": str(workload.kind.cpus)},
    }
    return {
        "kind": "Job",
        "name": workload.kind.name,
        "queue": workload.queue,
        "priorityClass": workload.kind.name,
        "placement": {"clusters": [workload.cohort]},
        "roles": [{"name": "main", "template": template}],
    }


class Call(NamedTuple):
    """What one POST submits under an idempotency key. Times in ms from the start of the load; ``send_ms`` is the end of the tick."""

    key: str
    send_ms: int
    dues_ms: tuple[int, ...]
    body: bytes


def calls_of(workloads: Iterable[Workload], most_jobs: int = JOBS_PER_CALL) -> list[Call]:
    """Return the calls in the order in which they are sent. Their bodies are made beforehand, so that sending costs little."""
    ticks: dict[int, list[Workload]] = defaultdict(list)
    for one in workloads:
        ticks[-(-one.due_ms // TICK_MS) * TICK_MS].append(one)
    parts = (
        (send_ms, due[start : start + most_jobs])
        for send_ms, due in sorted(ticks.items())
        for start in range(0, len(due), most_jobs)
    )
    return [
        Call(
            key=f"kueue-{part[0].number}",
            send_ms=send_ms,
            dues_ms=tuple(one.due_ms for one in part),
            body=orjson.dumps({"jobs": [spec(one) for one in part]}),
        )
        for send_ms, part in parts
    ]


class Answered(NamedTuple):
    """An acknowledged call; seconds from the start of the load."""

    call: Call
    sent: float
    acknowledged: float


class Generator:
    """Open loop: each call leaves at its time over a connection that is free, or a new one, and waits for no other call.

    429 and 503 are waited out as asked. A call whose connection broke is said again under its idempotency key.
    """

    def __init__(self, url: str, calls: list[Call]) -> None:
        self._url = url
        self._calls = calls
        self._own = threading.local()
        self._posters: list[Poster] = []
        self.answered: list[Answered] = []
        self.errors: list[str] = []
        self.repeats = 0
        self.began_at = 0.0
        """Seconds since the epoch."""
        self._began = 0.0

    def run(self) -> None:
        """Send everything; return when all calls were acknowledged or refused."""
        self._began, self.began_at = time.monotonic(), time.time()
        with ThreadPoolExecutor(MOST_CONNECTIONS) as senders:
            for call in self._calls:
                time.sleep(max(0.0, self._began + call.send_ms / 1000 - time.monotonic()))
                senders.submit(self._send, call)
        for poster in self._posters:
            poster.close()

    def _send(self, call: Call) -> None:
        poster = self._poster()
        sent = time.monotonic()
        for _ in range(_MOST_TRIES):
            try:
                poster.post("/v1/jobs", call.body, call.key)
            except RefusedError as error:
                self.errors.append(str(error))
                return
            except OSError:
                poster.close()
                self.repeats += 1
                time.sleep(_TRY_SECONDS)
            else:
                self.answered.append(Answered(call, sent - self._began, time.monotonic() - self._began))
                return
        self.errors.append(f"the call {call.key} was not answered in {_MOST_TRIES} tries")

    def _poster(self) -> Poster:
        poster: Poster | None = getattr(self._own, "poster", None)
        if poster is None:
            poster = self._own.poster = Poster(self._url)
            self._posters.append(poster)
        return poster

    @property
    def connections(self) -> int:
        """The number of opened connections, which is the largest number of concurrent calls."""
        return len(self._posters)

    @property
    def refused(self) -> int:
        """Answers that asked to try again later."""
        return sum(poster.refused for poster in self._posters)
