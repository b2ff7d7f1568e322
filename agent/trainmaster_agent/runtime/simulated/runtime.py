"""`SimulatedRuntime`: the runtime port over one simulated cluster. One timer of the event loop, no task."""

import asyncio
import uuid
from collections.abc import Callable
from hashlib import blake2b
from math import inf
from pathlib import Path
from typing import Any

from trainmaster.fake_cluster import member_use, output
from trainmaster.fake_cluster.cluster import FakeCluster
from trainmaster.fake_cluster.fleet import FleetCluster
from trainmaster.fake_cluster.run import FakeRun
from trainmaster.fake_cluster.seeded_random import draw
from trainmaster.protocol.agent import CapacityReport, ResizeRun, StartRun, StopRun
from trainmaster.protocol.member_streams import OpenMemberStream
from trainmaster_agent.containment import contain
from trainmaster_agent.runtime.change_event import ChangeEvent
from trainmaster_agent.runtime.local.layout import boot_id, boottime
from trainmaster_agent.runtime.port import LogSlice, MemberStream, MemberUse, RunStatus, StreamRefusedError, UseReading
from trainmaster_agent.runtime.simulated.journal import Journal
from trainmaster_agent.runtime.simulated.statuses import status_of

# More entries than this are replaced by the cluster's state. The bound grows with the runs held, so that the cost of one entry
# stays the same.
_LEAST_ENTRIES, _ENTRIES_EACH = 2_000, 10
_BAD_REQUEST = 400


class SimulatedRuntime:
    """``clock`` must be the one of the times given to ``renew``.

    Without ``state_dir`` all runs are in memory and end with this process, and each process is a new holder.
    """

    def __init__(
        self,
        cluster: FleetCluster,
        clock: Callable[[], float] = boottime,
        *,
        seed: int = 0,
        state_dir: Path | None = None,
    ) -> None:
        self._clock = clock
        self._spec = cluster
        self._seed = int(draw(seed, cluster.name) * 2**32)
        self.cluster = FakeCluster(cluster, clock(), self._seed)
        self._statuses: dict[str, RunStatus] = {}
        self._stale: dict[str, FakeRun] = {}
        """Runs that changed since their statuses were written."""
        self._changed = ChangeEvent()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._holder = uuid.uuid4().hex
        self._journal: Journal | None = None
        self._asked_at: tuple[float, float] | None = None
        """The last renewal, and its time. It is written to the journal only once a run depends on it."""
        if state_dir is not None:
            declared = f"{self._seed} {cluster.model_dump_json(exclude={'key', 'key_file', 'key_env'})}".encode()
            self._journal = Journal(state_dir, boot_id(), blake2b(declared, digest_size=16).hexdigest())

    @property
    def holder(self) -> str:
        return self._holder

    @property
    def place(self) -> str:
        """One constant: simulated members live only in the memory of the agent that holds the lease."""
        return "simulated"

    async def open(self) -> None:
        """Lock and replay the records. Raises RuntimeRefusedError when another agent uses them."""
        if self._journal is not None:
            found = self._journal.open(self._clock())
            self._holder = self._journal.holder
            if found.state is None:
                self.cluster = FakeCluster(self._spec, self._journal.began_at, self._seed)
            else:
                self.cluster = found.state
            for entry in found.entries:
                try:
                    self._repeat(entry)
                except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
                    # The call raised the first time as well, and the others went on.
                    contain("journal", error)
            self._stale.update(self.cluster.runs)
        self._look()

    def _write(self, at: float, what: str, value: Any) -> None:
        """Write a call to the journal before the cluster gets it. The state includes all earlier calls."""
        if self._journal is None:
            return
        if self._journal.entries >= _LEAST_ENTRIES + _ENTRIES_EACH * len(self.cluster.runs):
            self._journal.replace(self.cluster, self.cluster.now)
        self._journal.write(at, what, value)

    def _repeat(self, entry: dict[str, Any]) -> None:
        at = float(entry["at"])
        if "start" in entry:
            self.cluster.start(StartRun.model_validate(entry["start"]), at)
        elif "stop" in entry:
            self.cluster.stop(StopRun.model_validate(entry["stop"]), at)
        elif "resize" in entry:
            self.cluster.resize(ResizeRun.model_validate(entry["resize"]), at)
        elif "forget" in entry:
            self.cluster.forget(entry["forget"], at)
        elif "renew" in entry:
            self.cluster.renew(entry["renew"], at)
        elif "finish" in entry:
            self.cluster.finish(entry["finish"], at)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_at = None, inf
        if self._journal is not None:
            self._journal.close()

    async def capacity(self) -> CapacityReport:
        self._look()
        return self.cluster.report()

    def held(self) -> dict[str, RunStatus]:
        """Return the statuses, always in the same mapping: only those of runs that changed are rewritten."""
        self._look()
        if self._stale:
            stale, self._stale = self._stale, {}
            for run_id, run in stale.items():
                try:
                    self._statuses[run_id] = status_of(run)
                except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
                    contain("status", error, run=run_id)
        return self._statuses

    async def start(self, run: StartRun) -> None:
        now = self._clock()
        if self._journal is not None and run.run not in self.cluster.runs:
            if run.disconnect_seconds is not None and self._asked_at is not None:
                asked_at, at = self._asked_at
                self._write(at, "renew", asked_at)
            self._write(now, "start", run.model_dump(mode="json", by_alias=True, exclude_defaults=True))
        try:
            self.cluster.start(run, now)
        except Exception:
            half_started = self.cluster.runs.pop(run.run, None)
            if half_started is not None:
                half_started.token += 1
            self._stale.update(self.cluster.take_changed())
            self._stale.pop(run.run, None)
            raise
        self._tell()

    async def stop(self, stop: StopRun) -> None:
        now = self._clock()
        if stop.run in self.cluster.runs:
            self._write(now, "stop", stop.model_dump(mode="json", by_alias=True))
        self.cluster.stop(stop, now)
        self._tell()

    async def verify_absent(self, stop: StopRun, installation: str) -> bool:
        return stop.run not in self.cluster.runs

    async def resize(self, resize: ResizeRun) -> None:
        now = self._clock()
        held = self.cluster.runs.get(resize.run)
        if held is not None and resize.generation > held.generation:
            self._write(now, "resize", resize.model_dump(mode="json", by_alias=True))
        self.cluster.resize(resize, now)
        self._tell()

    async def forget(self, run: str) -> None:
        now = self._clock()
        self.cluster.advance(now)
        held = self.cluster.runs.get(run)
        if held is not None and held.state.is_terminal:
            self._write(now, "forget", run)
            self.cluster.forget(run, now)
            self._statuses.pop(run, None)
            self._stale.pop(run, None)
        self._tell()

    async def renew(self, asked_at: float) -> None:
        now = self._clock()
        self._asked_at = asked_at, now
        if self.cluster.minds_silence:
            self._write(now, "renew", asked_at)
        self.cluster.renew(asked_at, now)
        self._tell()

    def finish(self, run: str) -> None:
        """Let the members of a run succeed now, or as soon as they run. Not part of the port."""
        now = self._clock()
        if run in self.cluster.runs:
            self._write(now, "finish", run)
        self.cluster.finish(run, now)
        self._tell()

    async def wait_changed(self, timeout: float) -> bool:
        self._look()
        return await self._changed.taken_within(timeout)

    async def read_log(self, run: str, role: str, index: int, offset: int, limit: int) -> LogSlice:
        self._look()
        return LogSlice(*output.read(self.cluster.runs[run], role, index, self.cluster.now, offset, limit))

    @property
    def stores_output(self) -> bool:
        return False

    def output_end(self, run: str, role: str, index: int) -> int | None:
        if run not in self.cluster.runs:
            return None
        return output.length(self.cluster.runs[run], role, index, self.cluster.now)

    def output_lives(self, run: str, role: str, index: int) -> tuple[int, ...]:
        return ()

    async def member_use(self) -> UseReading:
        self._look()
        return UseReading(
            tuple(
                MemberUse(run.id, *use)
                for run in self.cluster.runs.values()
                for use in member_use.use_of(run, self.cluster.now)
            )
        )

    async def open_stream(self, order: OpenMemberStream) -> MemberStream:
        raise StreamRefusedError(
            _BAD_REQUEST, f"the members of {order.run} are simulated: there are no processes to connect to"
        )

    # Time

    def _look(self) -> None:
        """Advance the cluster to the clock."""
        try:
            self.cluster.advance(self._clock())
        except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
            contain("advance", error)  # the event that raised is past, and the next call handles the ones after it
        self._tell()

    def _tell(self) -> None:
        """Wake the waiters for changes, and set the timer for the next event."""
        if self.cluster.has_changed:
            self._stale.update(self.cluster.take_changed())
            self._changed.set()
        at = self.cluster.next_event_at()
        if at < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = at
            self._timer = asyncio.get_running_loop().call_later(max(0.0, at - self._clock()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_at = None, inf
        self._look()
