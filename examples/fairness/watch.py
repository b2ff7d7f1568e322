"""What the example shows while it runs: a table of the queues, and a line for each thing that happens to a job."""

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from trainmaster.client.http import Client
from trainmaster.protocol.ids import run_id
from trainmaster.protocol.states import JobState
from trainmaster.protocol.tenants import EventView, JobView

LOOK_SECONDS = 0.5
_MOST_NAMED = 2
"""Jobs of a queue to which the same happens at once are named up to this number, and counted above it."""
_HAPPENED = {
    "running": ("runs", "run", "cyan"),
    "preempted": ("is queued again", "are queued again", "yellow"),
    "succeeded": ("has succeeded", "have succeeded", "green"),
    "failed": ("has failed", "have failed", "red"),
    "lost": ("has lost its cluster", "have lost their cluster", "red"),
    "cancelled": ("is cancelled", "are cancelled", "magenta"),
}
"""By the last state of an event: what to say of one job, of several, and in which colour."""


@dataclass(frozen=True, slots=True)
class Use:
    """What a queue has at one moment: amounts in CPUs, ``waiting`` in jobs."""

    guaranteed: int
    running: int = 0
    waiting: int = 0

    @property
    def borrowed(self) -> int:
        return max(0, self.running - self.guaranteed)


@dataclass(frozen=True, slots=True)
class GaveWay:
    """A job whose run was ended for another one, and what was said of it."""

    job: str
    queue: str
    message: str


class Watch:
    """Follows all jobs of the example. ``job_cpus``: by queue, what one of its jobs takes."""

    def __init__(self, client: Client, console: Console, fleet_cpus: int, job_cpus: Mapping[str, int]) -> None:
        self.jobs: dict[str, JobView] = {}
        self.gave_way: list[GaveWay] = []
        self.most: dict[str, int] = defaultdict(int)
        """By queue: the most CPUs that it was seen to run on."""
        self._seen: dict[str, int] = defaultdict(int)
        """By job: the last of its events that was shown."""
        self._client = client
        self._console = console
        self._live: Live | None = None
        self._fleet_cpus = fleet_cpus
        self._job_cpus = job_cpus
        self._guaranteed = {
            queue.path: quota.amount("guaranteed", "cpu") or 0
            for queue in client.queues()
            for quota in (queue.resources.get("cpu"),)
            if quota is not None
        }
        self._began = time.monotonic()
        self._last_line = ""

    def __enter__(self) -> "Watch":
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def look(self) -> dict[str, Use]:
        """Look once at all jobs: print what has happened since the last time, and show what each queue has."""
        jobs = list(self._client.jobs())
        self.jobs = {job.id: job for job in reversed(jobs)}  # they come newest first
        happened = []
        for job in self.jobs.values():
            if job.version > self._seen[job.id]:
                events = self._client.events(job.id, after=self._seen[job.id])
                happened += [(job, event) for event in events]
                # Not the job's version: more may have happened since the list was read.
                self._seen[job.id] = max((event.seq for event in events), default=job.version)
        self._tell(happened)
        uses = {queue: self._use(queue) for queue in self._job_cpus}
        for queue, use in uses.items():
            self.most[queue] = max(self.most[queue], use.running)
        self._show(uses)
        return uses

    def of(self, queue: str, *states: JobState) -> list[JobView]:
        """Return the jobs of a queue in one of these states, the oldest first."""
        return [job for job in self.jobs.values() if job.queue == queue and job.state in states]

    def _use(self, queue: str) -> Use:
        running = len(self.of(queue, JobState.RUNNING)) * self._job_cpus[queue]
        return Use(self._guaranteed.get(queue, 0) // 1000, running, len(self.of(queue, JobState.QUEUED)))

    def _tell(self, happened: list[tuple[JobView, EventView]]) -> None:
        by_state: dict[tuple[str, str], list[tuple[JobView, EventView]]] = defaultdict(list)
        for job, event in happened:
            if event.kind == "preempt":
                self.gave_way.append(GaveWay(job.id, job.queue, event.message))
                self._line(f"{run_id(job.id, event.attempt or 0)} ends: {event.message}", "red")
            elif event.states:
                by_state[job.queue, event.states[-1]].append((job, event))
        for (queue, state), ones in by_state.items():
            if state not in _HAPPENED:
                continue
            one, several, colour = _HAPPENED[state]
            if len(ones) > _MOST_NAMED:
                self._line(f"{queue}: {len(ones)} jobs {several}", colour)
            else:
                for job, event in ones:
                    self._line(f"{job.id} {one}" + (f" on {event.cluster}" if state == "running" else ""), colour)

    def _line(self, text: str, colour: str) -> None:
        self._console.print(Text(f"{time.monotonic() - self._began:6.1f} s  {text}", style=colour))

    def _show(self, uses: Mapping[str, Use]) -> None:
        """Draw the table again on a terminal; elsewhere write a line where something has changed."""
        if self._live is not None:
            self._live.update(self._table(uses), refresh=True)
            return
        parts = [
            f"{queue} {use.running} CPU, {use.borrowed} borrowed, {use.waiting} waiting" for queue, use in uses.items()
        ]
        line = "; ".join(parts)
        if line != self._last_line:
            self._last_line = line
            self._line(line, "")

    def _table(self, uses: Mapping[str, Use]) -> Table:
        idle = self._fleet_cpus - sum(use.running for use in uses.values())
        table = Table(
            title=f"{time.monotonic() - self._began:.0f} s: {idle} of {self._fleet_cpus} CPUs are idle",
            title_justify="left",
            header_style="bold",
        )
        for column in ("queue", "guaranteed", "running", "borrowed", "waiting jobs"):
            table.add_column(column, justify="left" if column == "queue" else "right")
        table.add_column("one block is one CPU, light ones are borrowed", min_width=self._fleet_cpus)
        for queue, use in uses.items():
            table.add_row(
                queue,
                f"{use.guaranteed} CPU" if use.guaranteed else "nothing",
                f"{use.running} CPU",
                f"{use.borrowed} CPU",
                str(use.waiting),
                "█" * (use.running - use.borrowed) + "░" * use.borrowed,
            )
        return table
