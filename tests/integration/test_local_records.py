"""The local runtime with records that cannot be read, and without room for new ones: it starts, and nobody gets a second copy."""

import errno
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.runtime_suite import (
    RUNS,
    SUCCEEDS,
    WAITS_FOR_GATE,
    A,
    B,
    Part,
    eventually,
    start_run,
    stop_run,
    until_over,
    until_state,
)
from tests.integration.test_local_runtime import LocalLab
from trainmaster.protocol.states import FailureCategory, RunState
from trainmaster_agent.runtime.local import layout, process_table, supervisor
from trainmaster_agent.runtime.port import RuntimeAwayError

C = "other-2222222-r1"


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[LocalLab]:
    lab = LocalLab(tmp_path)
    await lab.local.open()
    try:
        yield lab
    finally:
        await lab.end()


def as_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "garbage": lambda path: path.write_bytes(b"\xff\xfe\x00{{{"),
    "nothing": lambda path: path.write_bytes(b""),
    "half of it": truncated,
    "other JSON": lambda path: path.write_bytes(b'[{"generation": "x", "cause": 7}]'),
    "a JSON object of something else": lambda path: path.write_bytes(b'{"run": "somebody-else-r9", "start": null}'),
    "a folder in its place": as_directory,
}
FILES = [layout.RECORD, layout.PLAN, layout.STATUS, layout.STOP, layout.PROCESSES]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
async def test_a_run_whose_file_cannot_be_read_is_held_and_attended_and_so_are_all_others(
    lab: LocalLab, name: str, damage: str
) -> None:
    await lab.local.start(start_run(lab, A, Part(RUNS)))
    await lab.local.start(start_run(lab, B, Part(WAITS_FOR_GATE)))
    await until_state(lab, A, RunState.RUNNING)
    await until_state(lab, B, RunState.RUNNING)
    await eventually(lambda: lab.ready(A) == 1, "its member runs")
    member = process_table.of_run(A, lab.run_dir(A))
    await lab.local.close()
    path = lab.run_dir(A) / name
    if not path.exists():
        path.write_text('{"generation": 1, "cause": "cancel", "grace": 0.0}')
    DAMAGES[damage](path)
    await lab.reopen()
    assert set(lab.local.held()) == {A, B}
    assert process_table.of_run(A, lab.run_dir(A)) == member, "it goes on, and is not started again"
    lab.open_gate(B)
    assert (await until_over(lab, B)).state is RunState.SUCCEEDED
    if damage == "a folder in its place" and name in (layout.STATUS, layout.STOP, layout.PROCESSES):
        path.rmdir()  # nothing can be written there
    await lab.local.stop(stop_run(A, grace=0, generation=50))
    assert (await until_over(lab, A)).state is RunState.CANCELLED
    assert process_table.of_run(A, lab.run_dir(A)) == []


@pytest.mark.parametrize("name", [layout.RECORD, layout.PLAN, layout.STATUS])
async def test_a_run_whose_supervisor_died_is_ended_once_nothing_of_it_lives_though_its_file_cannot_be_read(
    lab: LocalLab, name: str
) -> None:
    await lab.local.start(start_run(lab, A, Part(RUNS)))
    seq = (await until_state(lab, A, RunState.RUNNING)).seq
    await lab.local.close()
    (lab.run_dir(A) / name).write_bytes(b"\0")
    os.kill(lab.supervisor(A), 9)
    await lab.reopen()
    status = await until_over(lab, A)
    assert (status.state, status.end.category if status.end else None) == (RunState.FAILED, FailureCategory.NODE_LOST)
    assert status.seq > seq or name == layout.PLAN, "what was reported before may be more than what can be read"
    assert process_table.of_run(A, lab.run_dir(A)) == []
    await lab.local.forget(A)
    assert not lab.run_dir(A).exists()


@pytest.mark.parametrize(
    ("name", "damage"), [(layout.RECORD, "garbage"), (layout.STATUS, "nothing"), (layout.STOP, "garbage")]
)
async def test_a_run_that_waits_is_returned_and_never_started_when_a_file_of_it_cannot_be_read(
    lab: LocalLab, name: str, damage: str
) -> None:
    """It may have ended, or have been asked to stop: what is left does not say so."""
    await lab.local.start(start_run(lab, A, Part(RUNS, count=2, cpu="4")))
    await until_state(lab, A, RunState.RUNNING)
    await lab.local.start(start_run(lab, B, Part(RUNS)))
    await until_state(lab, B, RunState.PENDING)
    await lab.local.close()
    path = lab.run_dir(B) / name
    path.touch()
    DAMAGES[damage](path)
    await lab.reopen()
    status = lab.local.held()[B]
    assert status.state is RunState.RETURNED
    assert name in status.message
    assert not (lab.run_dir(B) / layout.STARTED).exists()
    await lab.restart()
    assert lab.local.held()[B].state is RunState.RETURNED


def a_file_at(path: Path) -> None:
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink()
    path.touch()


PLACES: dict[str, Callable[[Path], Any]] = {
    "the lease": lambda state: (state / layout.LEASE).write_bytes(b"soon \xff"),
    "a lease that is no number": lambda state: (state / layout.LEASE).write_text(f"nan {layout.boot_id()}"),
    "the holder": lambda state: (state / layout.HOLDER).write_bytes(b"\xff\n"),
    "no holder": lambda state: (state / layout.HOLDER).write_bytes(b""),
    "a file where supervisors are heard": lambda state: a_file_at(state / layout.POKE),
    "a file in place of what is thrown away": lambda state: a_file_at(state / layout.TRASH),
    "a foreign folder among the runs": lambda state: (state / layout.RUNS / "Lost+Found").mkdir(),
    "a foreign file among the runs": lambda state: (state / layout.RUNS / "notes").write_text("mine"),
    "locks with other words": lambda state: [
        (state / name).write_bytes(b"\xff") for name in (layout.AGENT_LOCK, layout.FORK_SERVER_LOCK)
    ],
}


@pytest.mark.parametrize("spoil", PLACES.values(), ids=PLACES)
async def test_the_agent_starts_with_anything_in_the_other_places_of_its_folder(
    lab: LocalLab, spoil: Callable[[Path], Any]
) -> None:
    await lab.local.start(start_run(lab, A, Part(WAITS_FOR_GATE)))
    await until_state(lab, A, RunState.RUNNING)
    await lab.local.close()
    before = {path.name for path in (lab.state_dir / layout.RUNS).iterdir()}
    spoil(lab.state_dir)
    foreign = {path.name for path in (lab.state_dir / layout.RUNS).iterdir()} - before
    await lab.reopen()
    assert lab.local.holder
    lab.open_gate(A)
    assert (await until_over(lab, A)).state is RunState.SUCCEEDED
    await lab.local.start(start_run(lab, C, Part(SUCCEEDS)))
    assert (await until_over(lab, C)).state is RunState.SUCCEEDED
    assert foreign <= {path.name for path in (lab.state_dir / layout.RUNS).iterdir()}, "foreign things are left alone"


class FullDisk:
    """A disk that takes nothing more while it ``is_full``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = True
        real = layout.replace

        def replace(path: Path, data: bytes, *, durable: bool) -> None:
            if self.is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            real(path, data, durable=durable)

        monkeypatch.setattr(layout, "replace", replace)


async def test_without_room_on_the_disk_new_runs_are_returned_and_the_others_attended(
    lab: LocalLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lab.local.start(start_run(lab, A, Part(WAITS_FOR_GATE)))
    await until_state(lab, A, RunState.RUNNING)
    disk = FullDisk(monkeypatch)
    await lab.local.start(start_run(lab, B, Part(SUCCEEDS)))
    status = lab.local.held()[B]
    assert (status.state, status.message) == (
        RunState.RETURNED,
        "it could not be recorded: No space left on device",
    )
    assert "no space is left for its records" in (await lab.local.capacity()).closed
    lab.open_gate(A)
    assert (await until_over(lab, A)).state is RunState.SUCCEEDED
    await lab.local.forget(B)
    disk.is_full = False
    assert (await lab.local.capacity()).closed == ""
    await lab.local.start(start_run(lab, B, Part(SUCCEEDS)))
    assert (await until_over(lab, B)).state is RunState.SUCCEEDED
    await lab.restart()
    assert lab.local.held()[B].state is RunState.SUCCEEDED


async def test_a_run_that_may_have_been_recorded_on_a_full_disk_is_not_returned(
    lab: LocalLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record could start it after a restart, while its job starts elsewhere."""

    def fails(_path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(layout, "sync_directory", fails)
    with pytest.raises(RuntimeAwayError):
        await lab.local.start(start_run(lab, A, Part(SUCCEEDS)))
    assert A not in lab.local.held()
    monkeypatch.undo()
    await lab.local.start(start_run(lab, A, Part(SUCCEEDS)))
    assert (await until_over(lab, A)).state is RunState.SUCCEEDED


async def test_one_run_whose_end_cannot_be_written_leaves_the_others_attended(
    lab: LocalLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lab.local.start(start_run(lab, A, Part(RUNS)))
    await lab.local.start(start_run(lab, B, Part(RUNS)))
    await until_state(lab, A, RunState.RUNNING)
    await until_state(lab, B, RunState.RUNNING)
    real = lab.local._records.write_status

    def fails(status: Any) -> None:
        if status.run == A:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(status)

    monkeypatch.setattr(lab.local._records, "write_status", fails)
    for run in (A, B):
        os.kill(lab.supervisor(run), 9)
    assert (await until_over(lab, B)).state is RunState.FAILED
    assert not lab.local.held()[A].state.is_terminal
    monkeypatch.undo()
    assert (await until_over(lab, A)).state is RunState.FAILED


def test_what_supervisors_read_is_a_plan_of_their_run() -> None:
    plan = {
        "run": A,
        "generation": 1,
        "seq": 2,
        "env": {},
        "members": [],
        "used": {"n": {"cpu": 1}},
        "ports": [1],
        "time_limit": None,
        "stop_grace": 1.0,
        "failures": {},
        "success": None,
        "disconnect": 3,
        "contact": 1.0,
        "boot": "b",
    }
    assert layout.is_plan(json.loads(json.dumps(plan)), A)
    assert not layout.is_plan(plan, B)
    for name in plan:
        assert not layout.is_plan({key: value for key, value in plan.items() if key != name}, A) or name in (
            "time_limit",
            "success",
            "disconnect",
        )
        assert not layout.is_plan({**plan, name: object()}, A)
    assert not layout.is_plan({**plan, "used": {"n": {"cpu": "x"}}}, A)
    assert not layout.is_plan({**plan, "members": [{"role": "w"}]}, A)


def test_a_supervisor_without_room_on_the_disk_claims_nothing_so_that_another_one_may_try_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "mkfifo", full)
        assert not supervisor.claim(tmp_path)
    assert not (tmp_path / layout.STARTED).exists()
    assert supervisor.claim(tmp_path)
    assert (tmp_path / layout.CONTROL).is_fifo()
    assert not supervisor.claim(tmp_path), "one only"
