"""`LocalRuntime`: the runtime port over real processes of this machine.

All state is in the records; memory holds a copy. The event loop owns the copy: threads only read and write files.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainmaster.protocol.agent import CapacityReport, ResizeRun, StartRun, StopRun
from trainmaster.protocol.member_streams import MemberStreamKind, OpenMemberStream
from trainmaster.protocol.states import RunState
from trainmaster_agent.containment import contain, run_for_ever
from trainmaster_agent.runtime.change_event import ChangeEvent
from trainmaster_agent.runtime.local import lasting_commands, layout, logs, process_table, strays
from trainmaster_agent.runtime.local.attached_output import AttachedOutput
from trainmaster_agent.runtime.local.config import LocalCluster
from trainmaster_agent.runtime.local.layout import boottime
from trainmaster_agent.runtime.local.member_command import CommandOrders
from trainmaster_agent.runtime.local.member_streams import OpenStreams, connect_to_port, run_command
from trainmaster_agent.runtime.local.member_use import UseMeter
from trainmaster_agent.runtime.local.output_bounds import MOST_OUTPUT, bound_output
from trainmaster_agent.runtime.local.records import LocalRecord, LocalRecords, NoSpaceError, RecordState
from trainmaster_agent.runtime.local.results_file import remove_outside
from trainmaster_agent.runtime.local.run_entry import Phase, RunEntry, check_name
from trainmaster_agent.runtime.local.run_registry import RunRegistry
from trainmaster_agent.runtime.local.spawner import Spawner
from trainmaster_agent.runtime.port import (
    LogSlice,
    MemberStream,
    MemberUse,
    RunStatus,
    RuntimeAwayError,
    RuntimeRefusedError,
    StreamRefusedError,
    UseReading,
)

_log = logging.getLogger(__name__)

_BOUND_SECONDS = 1.0
_BOUND_AT_ONCE = 8
"""Files whose middle is given back at once: the file system writes what is not on the disk yet first, so that one by one takes many
seconds on a busy disk.
"""
_LOOK_EVERY = 0.5
"""Seconds between checks of all runs, for events without a poke: a killed supervisor, an expired limit."""
_SPACE = 64 * 1024
"""Bytes that must be writable before runs are accepted again after the disk was full."""
_BAD_REQUEST, _WRONG_STATE = 400, 409
_ASK_AGAIN = 5.0
"""Seconds after which a supervisor is requested again: the first one may have been killed before it did anything."""


def _bound(files: list[Path]) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            bound_output(file, MOST_OUTPUT)


class LocalRuntime:
    """Runs members as processes; respects the declared capacity, starts gangs together or not at all.

    ``user``: ids of the user and the group that members run as, for an agent of root; None: members run as the agent's user.
    """

    def __init__(self, state_dir: Path, cluster: LocalCluster, user: tuple[int, int] | None = None) -> None:
        self._records = LocalRecords(state_dir)
        self._changed = ChangeEvent()
        self._registry = RunRegistry(self._records, cluster, self._ask, self._changed.set, user)
        self._spawner = Spawner(self._records.state_dir, self._registry.refuse, self._on_death)
        self._strays = strays.Strays()
        self._streams = OpenStreams()
        self._meter = UseMeter()
        self._holder = ""
        self._no_space = ""
        """Reason why no run can be recorded now; reported with the capacity, so that none is sent."""
        self._lease: float | None = None
        self._accepting: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._bounding = ThreadPoolExecutor(_BOUND_AT_ONCE, "bound-output")
        self._pokes: int | None = None
        self._part_of_poke = b""

    @property
    def holder(self) -> str:
        return self._holder

    @property
    def place(self) -> str:
        return strays.place()

    async def open(self) -> None:
        """Lock the records and take over their runs. Raises RuntimeRefusedError when another agent uses these records."""
        self._holder = await asyncio.to_thread(self._records.open)
        try:
            await self._spawner.start()
            self._listen()
            self._lease = layout.read_lease(self._records.state_dir, self._registry.boot)
            self._registry.take_over(await asyncio.to_thread(self._records.load))
            await self._look()
        except BaseException:
            await self.close()
            raise
        self._keep(run_for_ever("look", self._look_again_and_again))
        self._keep(run_for_ever("bound-output", self._bound_outputs))

    async def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._streams.close_unless(lambda *_: False)
        if self._pokes is not None:
            asyncio.get_running_loop().remove_reader(self._pokes)
            os.close(self._pokes)
            self._pokes = None
        self._bounding.shutdown(wait=False, cancel_futures=True)
        await self._spawner.close()
        self._records.close()

    async def capacity(self) -> CapacityReport:
        if self._no_space:
            await asyncio.to_thread(self._try_space)
        return self._registry.capacity.report().model_copy(update={"closed": self._no_space})

    def _try_space(self) -> None:
        """Check whether runs can be recorded again."""
        path = self._records.state_dir / layout.TRASH / "space"
        try:
            layout.replace(path, b"x" * _SPACE, durable=False)
            self._no_space = ""
        except OSError as error:
            self._no_space = f"no space is left for its records: {error}"
        with contextlib.suppress(OSError):
            path.with_name(path.name + ".new").unlink(missing_ok=True)
            path.unlink(missing_ok=True)

    def held(self) -> dict[str, RunStatus]:
        return {run: held.status for run, held in self._registry.runs.items()}

    async def start(self, run: StartRun) -> None:
        check_name(run)
        if run.run in self._registry.runs:
            return
        task = self._accepting.get(run.run)
        if task is None:
            task = self._accepting[run.run] = self._keep(self._accept(run))
        await asyncio.shield(task)  # a cancelled caller must not leave a record that memory does not know

    async def _accept(self, run: StartRun) -> None:
        try:
            record = LocalRecord(start=run, accepted_at=boottime(), boot=self._registry.boot)
            try:
                await asyncio.to_thread(self._records.create, record)
            except NoSpaceError as error:
                self._no_space = f"no space is left for its records: {error}"
                self._registry.reject(record, f"it could not be recorded: {error.strerror}")
                return
            except OSError as error:
                raise RuntimeAwayError(f"run {run.run} could not be recorded: {error}") from error
            self._no_space = ""
            self._registry.enter(record)
        finally:
            del self._accepting[run.run]

    async def stop(self, stop: StopRun) -> None:
        if (task := self._accepting.get(stop.run)) is not None:
            await asyncio.wait((task,))
        held = self._registry.runs.get(stop.run)
        if held is None or held.status.state.is_terminal or stop.generation < held.status.generation:
            return
        known = held.stop
        if known is None or (stop.generation, -stop.longest) > (known.generation, -known.longest):
            self._registry.stop(held, stop)

    async def verify_absent(self, stop: StopRun, installation: str) -> bool:
        if stop.run in self._accepting or stop.run in self._registry.runs or not installation:
            return False
        return await asyncio.to_thread(self._strays.clear, stop, installation)

    async def resize(self, resize: ResizeRun) -> None:
        if (task := self._accepting.get(resize.run)) is not None:
            await asyncio.wait((task,))
        held = self._registry.runs.get(resize.run)
        if held is None or held.status.state.is_terminal or held.stop is not None:
            return
        if resize.generation > held.status.generation:
            self._registry.resize(held, resize)

    async def forget(self, run: str) -> None:
        held = self._registry.runs.get(run)
        if held is not None and held.status.state.is_terminal:
            del self._registry.runs[run]
            await asyncio.to_thread(self._records.discard, run)

    async def renew(self, asked_at: float) -> None:
        if self._lease is None or asked_at > self._lease:
            self._lease = asked_at
            layout.write_lease(self._records.state_dir, asked_at, self._registry.boot)

    async def wait_changed(self, timeout: float) -> bool:
        return await self._changed.taken_within(timeout)

    async def read_log(self, run: str, role: str, index: int, offset: int, limit: int) -> LogSlice:
        held = self._registry.runs[run]
        if not (0 <= index < held.record.start.sizes.get(role, 0) or held.has_member(role, index)):
            raise KeyError(f"run {run} has no member {role}-{index}")
        over = logs.member_is_over(held.status, role, index)
        return await asyncio.to_thread(logs.read, self._output_of(run, role, index), offset, limit, over=over)

    @property
    def stores_output(self) -> bool:
        return True

    def output_end(self, run: str, role: str, index: int) -> int | None:
        try:
            return self._output_of(run, role, index).stat().st_size
        except OSError:
            return None if run not in self._registry.runs else 0

    def output_lives(self, run: str, role: str, index: int) -> tuple[int, ...]:
        try:
            written = (self._records.directory(run) / f"{role}-{index}{layout.LIVES}").read_text()
        except OSError:
            return ()
        return tuple(int(line) for line in written.split() if line.isdecimal())

    async def member_use(self) -> UseReading:
        folders = {
            run: self._records.directory(run) for run, status in self.held().items() if status.state is RunState.RUNNING
        }
        return UseReading(await asyncio.to_thread(self._read_use, folders))

    def _read_use(self, folders: Mapping[str, Path]) -> tuple[MemberUse, ...]:
        """Return the use of these runs' members with their restarts; no memory limit holds for them."""
        return tuple(
            replace(one, restarts=len(self.output_lives(one.run, one.role, one.index)))
            for one in self._meter.read(folders)
        )

    async def open_stream(self, order: OpenMemberStream) -> MemberStream:
        options, name = order.options, f"{order.role}-{order.index}"
        held = self._registry.runs.get(order.run)
        plan = None if held is None or held.plan is None else held.plan
        member = plan and next(
            (m for m in plan["members"] if (m["role"], m["index"]) == (order.role, order.index)), None
        )
        if plan is None or not member or not self._is_running(order.run, order.role, order.index):
            raise StreamRefusedError(_WRONG_STATE, f"the member {name} of {order.run} does not run")
        stream: MemberStream
        commands = self._records.directory(order.run) / layout.COMMANDS
        if options.kind is MemberStreamKind.ATTACH:
            return await self._attached(order)
        if options.kind is MemberStreamKind.PORT_FORWARD:
            stream = await connect_to_port(options)
        elif options.lasting and options.received is not None:
            stream = await lasting_commands.connect(commands, options)
        else:
            folder = member["cwd"] or str(self._records.directory(order.run) / name)
            user = plan.get("user")
            home = {} if user is None or member["cwd"] is not None else {"HOME": folder}
            orders = CommandOrders(
                argv=list(options.command),
                env={**plan["env"], **home, **member["env"]},
                cwd=folder,
                user=user,
                tty=options.tty,
                parent=os.getpid(),
            )
            if options.lasting:
                stream = await lasting_commands.start_command(commands, orders, options)
            else:
                stream = await run_command(orders, options)
        self._streams.add(order, stream)
        return stream

    async def _attached(self, order: OpenMemberStream) -> MemberStream:
        """Return the output of a member. Raises StreamRefusedError."""
        if order.options.stdin:
            message = "this cluster's members are processes without input: attach without -i, or run a command beside one (exec)"
            raise StreamRefusedError(_BAD_REQUEST, message)
        run, role, index = order.run, order.role, order.index

        async def read(offset: int, limit: int) -> LogSlice:
            return await self.read_log(run, role, index, offset, limit)

        size = self.output_end(run, role, index) or 0
        wanted = size if order.options.offset is None else order.options.offset
        return AttachedOutput(order.options, read, (await read(wanted, 1)).offset)

    def _is_running(self, run: str, role: str, index: int) -> bool:
        status = self.held().get(run)
        members = () if status is None or status.state.is_terminal else status.members
        return any((one.role, one.index, one.state) == (role, index, "running") for one in members)

    async def _bound_outputs(self) -> None:
        """Give back the middle of long output files, again and again. Supervisors do so more rarely, also without an agent."""
        while True:
            await asyncio.sleep(_BOUND_SECONDS)
            files = [
                self._output_of(status.run, member.role, member.index)
                for status in self.held().values()
                if not status.state.is_terminal
                for member in status.members
            ]
            if files:
                loop = asyncio.get_running_loop()
                parts = [files[number::_BOUND_AT_ONCE] for number in range(_BOUND_AT_ONCE)]
                await asyncio.gather(*(loop.run_in_executor(self._bounding, _bound, part) for part in parts if part))

    def _output_of(self, run: str, role: str, index: int) -> Path:
        return self._records.directory(run) / f"{role}-{index}.log"

    # Messages of supervisors and the fork server

    def _listen(self) -> None:
        fifo = self._records.state_dir / layout.POKE
        if fifo.exists() and not fifo.is_fifo():
            contain("record", ValueError("this is not a FIFO; it is replaced by one"), str(fifo))
            fifo.unlink()
        with contextlib.suppress(FileExistsError):
            os.mkfifo(fifo, 0o600)
        self._pokes = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)  # opened for writing too, so that reading never ends
        asyncio.get_running_loop().add_reader(self._pokes, self._hear_pokes, self._pokes)

    def _hear_pokes(self, fifo: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._part_of_poke += os.read(fifo, 1 << 16)
        *names, self._part_of_poke = self._part_of_poke.split(b"\n")
        for name in dict.fromkeys(names):
            held = self._registry.runs.get(os.fsdecode(name))
            if held is not None:
                self._registry.contained(held, self._registry.read)
        try:
            self._registry.fill()
        except Exception as error:  # noqa: BLE001 - contained: done again at the next look
            contain("run", error)

    def _ask(self, run: str) -> None:
        self._spawner.ask(self._records.directory(run))

    def _on_death(self) -> None:
        self._keep(run_for_ever("fork-server", self._replace_fork_server))

    async def _replace_fork_server(self) -> None:
        """Start another fork server. Once it has its lock no start is in progress: missing supervisors are requested again."""
        _log.warning("the fork server, the process that starts runs, has died; starting another one")
        await self._spawner.reap()
        while True:
            try:
                await self._spawner.start()
                break
            except (RuntimeRefusedError, OSError):
                _log.exception("cannot start the fork server, the process that starts runs, now; trying again")
                await asyncio.sleep(_LOOK_EVERY)
        for held in tuple(self._registry.runs.values()):
            if held.phase is Phase.REQUESTED:
                try:
                    self._registry.ask(held)
                except Exception as error:  # noqa: BLE001 - contained: it is requested again at a later look
                    contain("start", error, run=held.run)

    # Periodic checks

    async def _look_again_and_again(self) -> None:
        while True:
            clock = self._registry.next_clock()
            rest = _LOOK_EVERY if clock is None else min(_LOOK_EVERY, clock - boottime())
            await asyncio.sleep(max(0.01, rest))
            try:
                await self._look()
            except OSError:
                _log.exception("cannot read or write the records in %s now, trying again", self._records.state_dir)
            except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
                contain("look", error)

    async def _look(self) -> None:
        """Read changes without a poke, end runs without a supervisor, check the limits of waiting ones."""
        names = [run for run, held in self._registry.runs.items() if held.phase in (Phase.REQUESTED, Phase.KEPT)]
        for run, sight in (await asyncio.to_thread(self._sights, names)).items():
            held = self._registry.runs.get(run)
            if held is not None:
                try:
                    await self._attend(held, sight)
                except OSError as error:
                    # Such as a full disk: the others are handled, and this one again soon.
                    contain("run", error, run=run)
        for held in tuple(self._registry.runs.values()):
            if held.resize is not None or (held.plan is not None and held.plan["resized"]):
                self._registry.contained(held, self._registry.try_resize)
        self._registry.mind_clocks(self._lease)
        self._registry.fill()
        await self._streams.close_unless(self._is_running)

    async def _attend(self, held: RunEntry, sight: RecordState) -> None:
        run = held.run
        if sight.changed_at != held.read_at:
            held.read_at = sight.changed_at
            self._registry.contained(held, self._registry.read)
        if sight.kept and not sight.alive:
            try:
                await self._end_unsupervised(run)
            except OSError:
                raise
            except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
                contain("end_unsupervised", error, run=run)
        elif held.phase is Phase.REQUESTED and not sight.kept and boottime() > held.asked_at + _ASK_AGAIN:
            self._registry.ask(held)

    def _sights(self, runs: list[str]) -> dict[str, RecordState]:
        return {run: self._records.look(run) for run in runs}

    async def _end_unsupervised(self, run: str) -> None:
        """End a run without a supervisor: read its last status, or make sure that no process of the run is left."""
        held = self._registry.runs[run]
        self._registry.read(held)
        if held.phase is not Phase.OVER:
            await asyncio.to_thread(process_table.kill_leftovers, run, self._records.directory(run))
            await asyncio.to_thread(remove_outside, self._records.directory(run))
            self._registry.end_unsupervised(held)

    def _keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
