"""The agent's runs: their state, the process responsible for each, and the cluster's free capacity.

Runs start strictly in the order of acceptance; one that waits for capacity lets none pass.
Works on the event loop's thread; it blocks only on small files.
"""

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from trainmaster.cluster_model.packing import Assignment, PackingShortfall
from trainmaster.protocol.agent import ResizeRun, RunEnd, StopRun
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.states import FailureCategory, RunState
from trainmaster_agent.containment import contain
from trainmaster_agent.run_spans import note_created
from trainmaster_agent.runtime.local.config import LocalCluster
from trainmaster_agent.runtime.local.layout import RunPlan, boot_id, boottime
from trainmaster_agent.runtime.local.local_capacity import LocalCapacity
from trainmaster_agent.runtime.local.plan import PortPool, make_plan, nodes_of, port_count, resized_plan
from trainmaster_agent.runtime.local.records import LocalRecord, LocalRecords
from trainmaster_agent.runtime.local.run_entry import Phase, RunEntry, StartRefusal, accepted, admit
from trainmaster_agent.runtime.port import RunStatus

log = logging.getLogger(__name__)

_UNSEEN_CHANGES = 1000
"""Added to ``seq`` after a restart of the machine: the last changes may have been reported without being on disk."""


class RunRegistry:
    """``ask`` requests a supervisor for a run, ``changed`` is called at each change of a status."""

    def __init__(
        self,
        records: LocalRecords,
        cluster: LocalCluster,
        ask: Callable[[str], None],
        changed: Callable[[], None],
        user: tuple[int, int] | None = None,
    ) -> None:
        self._user = user
        self.runs: dict[str, RunEntry] = {}
        self.capacity = LocalCapacity(cluster)
        self.boot = boot_id()
        self._records = records
        self._ask = ask
        self._changed = changed
        self._ports = PortPool()
        self._waiting: dict[str, RunEntry] = {}

    def enter(self, record: LocalRecord) -> None:
        """Add a new run whose record is durable."""
        held = RunEntry(record, accepted(record))
        self.runs[held.run] = self._waiting[held.run] = held
        self._changed()
        self.contained(held, self._admit)
        self.fill()
        if held.phase is Phase.WAITING and held.status.state is RunState.ACCEPTED:
            self._say(held, held.next(RunState.PENDING, "it waits behind runs that were accepted earlier"))

    def take_over(self, records: list[LocalRecord]) -> None:
        """Add the runs of an earlier agent. No start of them is in progress: earlier fork servers have ended."""
        for record in records:
            try:
                self._take_over(record)
            except OSError:
                raise
            except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
                contain("take-over", error, run=record.start.run)
        for held in tuple(self._waiting.values()):
            self.contained(held, self._admit)

    def contained(self, held: RunEntry, step: Callable[[RunEntry], None]) -> None:
        """Take a step for one run. An unexpected error ends the run if no start was requested yet; else the run goes on.

        Raises OSError when the records cannot be read or written now, which is no fault of the run.
        """
        try:
            step(held)
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
            words = contain("run", error, run=held.run)
            if held.phase is Phase.WAITING and not held.status.state.is_terminal:
                message = f"the agent cannot handle this run: {words}"
                self._end(held, RunState.FAILED, message, FailureCategory.CONFIG)

    def _take_over(self, record: LocalRecord) -> None:
        run = record.start.run
        held = RunEntry(record, self._records.status(run) or accepted(record), stop=self._records.stop(run))
        self.runs[run] = held
        sight = self._records.look(run)
        if held.status.state.is_terminal:
            held.phase = Phase.OVER
        elif sight.kept:
            held.phase = Phase.KEPT
            plan = self._records.plan(run)
            if plan is not None and sight.alive:
                plan.setdefault("resized", False)  # an agent of an earlier version did not record that
                held.plan = plan
                self.capacity.take(run, plan["used"])
                self._ports.hold(run, plan["ports"])
                if plan["resized"] and held.status.generation >= plan["generation"]:
                    self._settle_capacity(held, plan)
        elif held.stop is not None:
            self._end_by_stop(held, held.stop)
        elif record.damage:
            # It may have ended, or have been ordered to stop: starting it now could create a second copy.
            self._skip_unseen(held)
            self._end(held, RunState.RETURNED, f"the agent's records of it cannot be read: {record.damage}")
        elif record.boot != self.boot and record.start.disconnect_seconds is not None:
            message = "the machine was restarted before the members were started, and may have been away for too long"
            self._end(held, RunState.LOST, message)
        else:
            if record.boot != self.boot:
                held.record = record.model_copy(update={"accepted_at": boottime(), "boot": self.boot})
                self._records.create(held.record)
            self._waiting[run] = held

    def fill(self) -> None:
        """Start waiting runs, oldest first, until one does not fit."""
        for held in tuple(self._waiting.values()):
            self.contained(held, self._start_if_it_fits)
            if held.run in self._waiting and held.spec is not None:
                return

    def _start_if_it_fits(self, held: RunEntry) -> None:
        if held.spec is None:
            return
        nodes = self.capacity.find(held.spec, held.record.start.sizes)
        if isinstance(nodes, PackingShortfall):
            message = f"it waits for free capacity: {nodes.sentence}"
            if (held.status.state, held.status.message) != (RunState.PENDING, message):
                self._say(held, held.next(RunState.PENDING, message))
            return
        self._launch(held, held.spec, nodes)

    def mind_clocks(self, lease: float | None) -> None:
        """End waiting runs whose time is up."""
        now = boottime()
        for held in tuple(self._waiting.values()):
            self.contained(held, partial(self._mind_clock, lease=lease, now=now))

    def _mind_clock(self, held: RunEntry, lease: float | None, now: float) -> None:
        if held.spec is None:
            self._admit(held)  # its refusal could not be written at the first try
            return
        lost_at = held.lost_at(lease)
        if lost_at is not None and now >= lost_at:
            message = "no contact with the dispatcher while it waited for free capacity: the job may start elsewhere"
            self._end(held, RunState.LOST, message)
        elif now >= held.returned_at():
            fit = self.capacity.find(held.spec, held.record.start.sizes)
            why = fit.sentence if isinstance(fit, PackingShortfall) else "runs that were accepted earlier came first"
            message = f"it found no free capacity within the placement time-out: {why}"
            self._say(held, held.next(RunState.RETURNED, message, RunEnd(message=message, lacks_room=True)))

    def next_clock(self) -> float | None:
        """Return when the next waiting run is returned for want of capacity."""
        return min((held.returned_at() for held in self._waiting.values()), default=None)

    def stop(self, held: RunEntry, stop: StopRun) -> None:
        """Take a stop order newer than the last one; a run that waits ends at once."""
        self._records.write_stop(stop)
        held.stop = stop
        if held.phase is Phase.WAITING:
            self._end_by_stop(held, stop)
            self.fill()

    def resize(self, held: RunEntry, order: ResizeRun) -> None:
        """Resize a run; one that waits for capacity then waits for its new size."""
        if held.phase is Phase.WAITING:
            start = held.record.start.model_copy(update={"sizes": order.sizes, "generation": order.generation})
            held.record = held.record.model_copy(update={"start": start})
            self._records.create(held.record)
            status = held.next(held.status.state, held.status.message)
            self._say(held, dataclasses.replace(status, generation=order.generation, sizes=order.sizes))
            self.fill()
        elif held.plan is not None and held.phase is not Phase.OVER and order.generation > held.plan["generation"]:
            held.resize = order
            self.try_resize(held)

    def try_resize(self, held: RunEntry) -> None:
        """Complete a resize: write what could not be written, and repeat what the supervisor has not read."""
        plan = held.plan
        if plan is None or held.phase is Phase.OVER or held.stop is not None:
            held.resize = None
        elif held.resize is not None:
            self._resize_kept(held, plan, held.resize)
        elif plan["resized"] and plan["generation"] > held.status.generation:
            self._records.poke(held.run)

    def _resize_kept(self, held: RunEntry, plan: RunPlan, order: ResizeRun) -> None:
        spec = held.spec = held.spec or JobSpec.model_validate(held.record.start.spec)
        stay = [one for one in plan["members"] if one["index"] < order.sizes.get(one["role"], one["index"] + 1)]
        counts = Counter(one["role"] for one in stay)
        more = {role: size - counts[role] for role, size in order.sizes.items() if size > counts[role]}
        nodes = self.capacity.find(spec, more) if more else {}
        if isinstance(nodes, PackingShortfall):
            nodes, more = {}, {}
        try:
            ports = self._ports.take(held.run, port_count(spec, more)) if more else []
            fresh = resized_plan(plan, held.record, spec, order.generation, stay, nodes, self.capacity.group_of, ports)
            # Until the supervisor reports that they have ended, leaving members are counted as well.
            both = [*plan["members"], *(one for one in fresh["members"] if one not in stay)]
            fresh["used"] = self.capacity.use(spec, nodes_of(both))
            self._records.tell_plan(fresh)
        except OSError as error:
            log.warning("run %s keeps its size, it could not be resized: %s", held.run, error)
            return
        held.plan, held.resize = fresh, None
        self.capacity.take(held.run, fresh["used"])

    def _settle_capacity(self, held: RunEntry, plan: RunPlan) -> None:
        """Free the capacity of members that have left."""
        there = {(one.role, one.index) for one in held.status.members}
        if not there <= {(one["role"], one["index"]) for one in plan["members"]}:
            return
        spec = held.spec = held.spec or JobSpec.model_validate(held.record.start.spec)
        used = self.capacity.use(spec, nodes_of(plan["members"]))
        if used != plan["used"]:
            plan["used"] = used
            self.capacity.take(held.run, used)
            with suppress(OSError):
                self._records.write_plan(plan)

    def read(self, held: RunEntry) -> None:
        """Read the supervisor's status, if it is new."""
        status = self._records.status(held.run)
        if held.phase is not Phase.OVER and status is not None and status.seq > held.status.seq:
            held.phase = Phase.KEPT
            self._take_status(held, status)
            if held.plan is not None and held.plan["resized"] and status.generation >= held.plan["generation"]:
                self._settle_capacity(held, held.plan)

    def refuse(self, run: str, message: str) -> None:
        """Note that the fork server has no supervisor for a run."""
        held = self.runs.get(run)
        if held is not None and held.phase is Phase.REQUESTED and self._records.forbid_start(run):
            self._end(held, RunState.RETURNED, f"its processes could not be started: {message}")
            self.fill()

    def end_unsupervised(self, held: RunEntry) -> None:
        """End a run whose supervisor has died and of which no process lives any more."""
        message = "the process that supervised the run was killed"
        if held.record.damage:
            message += f", and the agent's records of it cannot be read: {held.record.damage}"
            self._skip_unseen(held)
        if held.record.boot != self.boot:
            message = "the machine was restarted"
            self._skip_unseen(held)
        members = tuple(
            member.model_copy(update={"state": "stopped"}) if member.state in ("pending", "running") else member
            for member in held.status.members
        )
        held.status = dataclasses.replace(held.status, members=members)
        if held.stop is not None:
            self._end(held, held.stop.cause.ends_as, f"stopped: {held.stop.cause}; {message}")
        else:
            self._end(held, RunState.FAILED, message, FailureCategory.NODE_LOST)

    def _skip_unseen(self, held: RunEntry) -> None:
        """Number the next status above all that may have been reported and cannot be read any more."""
        held.status = dataclasses.replace(held.status, seq=held.status.seq + _UNSEEN_CHANGES)

    def reject(self, record: LocalRecord, message: str) -> None:
        """Hold a run as ``returned`` that was never recorded: nobody will ever start it from these records."""
        held = RunEntry(record, accepted(record))
        self.runs[held.run] = held
        self._take_status(held, held.next(RunState.RETURNED, message, RunEnd(message=message)))

    def _admit(self, held: RunEntry) -> None:
        """End a waiting run that can never start."""
        answer = admit(held.record.start, self.capacity)
        if isinstance(answer, StartRefusal):
            self._end(held, answer.state, answer.message, answer.category)
        else:
            held.spec = answer

    def _launch(self, held: RunEntry, spec: JobSpec, nodes: Assignment) -> None:
        used = self.capacity.use(spec, nodes)
        try:
            ports = self._ports.take(held.run, port_count(spec, held.record.start.sizes))
            plan = make_plan(held.record, spec, held.status.seq, nodes, self.capacity.group_of, used, ports)
            plan["resized"] = held.status.sizes is not None
            if self._user is not None:
                plan["user"] = list(self._user)
            self._records.write_plan(plan)
        except OSError as error:
            self._end(held, RunState.RETURNED, f"it could not be prepared: {error.strerror}")
            return
        held.plan = plan
        self.capacity.take(held.run, used)
        held.phase = Phase.REQUESTED
        del self._waiting[held.run]
        self.ask(held)
        note_created(held.run)

    def ask(self, held: RunEntry) -> None:
        """Request a supervisor; repeating this does no harm, because only one of them may start anything."""
        held.asked_at = boottime()
        self._ask(held.run)

    def _end_by_stop(self, held: RunEntry, stop: StopRun) -> None:
        self._end(held, stop.cause.ends_as, f"stopped before it started: {stop.cause}")

    def _end(self, held: RunEntry, state: RunState, message: str, category: FailureCategory | None = None) -> None:
        self._say(held, held.next(state, message, RunEnd(category=category, message=message)))

    def _say(self, held: RunEntry, status: RunStatus) -> None:
        """Write a status in place of a supervisor."""
        self._records.write_status(status)
        self._take_status(held, status)

    def _take_status(self, held: RunEntry, status: RunStatus) -> None:
        held.status = status
        self._changed()
        if status.state.is_terminal:
            held.phase = Phase.OVER
            held.plan = None
            self._waiting.pop(held.run, None)
            self.capacity.give_back(held.run)
            self._ports.give_back(held.run)
