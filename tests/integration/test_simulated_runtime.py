"""The simulated runtime on real time: the conformance suite, and what its records promise."""

import random
import resource
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.runtime_suite import (
    RUNS,
    SUCCEEDS,
    A,
    B,
    Behaviour,
    C,
    Does,
    Part,
    RuntimeConformance,
    eventually,
    start_run,
    stop_run,
    until_state,
)
from trainmaster.fake_cluster.fleet import FleetCluster
from trainmaster.protocol.states import RunState
from trainmaster_agent.runtime.local.layout import boottime
from trainmaster_agent.runtime.port import Runtime, RuntimeRefusedError
from trainmaster_agent.runtime.simulated import runtime as runtime_module
from trainmaster_agent.runtime.simulated.runtime import SimulatedRuntime

CLUSTER = FleetCluster.model_validate(
    {"name": "lab", "groups": [{"name": "cpu", "count": 2, "resources": {"cpu": "4", "memory": "8Gi"}}]}
)


class SimulatedLab:
    """A state directory and the runtime that is open on it; its world is the model itself."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.simulated = SimulatedRuntime(CLUSTER, state_dir=state_dir)

    @property
    def runtime(self) -> Runtime:
        return self.simulated

    async def restart(self) -> None:
        await self.simulated.close()
        self.simulated = SimulatedRuntime(CLUSTER, state_dir=self.state_dir)
        await self.simulated.open()

    def template(self, run: str, behaviour: Behaviour) -> dict[str, Any]:
        failing = {"SIM_EXIT_CODE": str(behaviour.code)} if behaviour.code else {}
        variables = {
            Does.SUCCEED: {"SIM_RUN_TIME": "0s"},
            Does.EXIT: {"SIM_RUN_TIME": "0s", "SIM_EXIT_CODE": str(behaviour.code)},
            Does.DIE_BY_SIGNAL: {"SIM_RUN_TIME": "0s", "SIM_SIGNAL": str(behaviour.code)},
            Does.PRINT: {"SIM_RUN_TIME": "0s", "SIM_OUTPUT": behaviour.text},
            Does.RETURN: {"SIM_RUN_TIME": "0s", "SIM_RESULTS": behaviour.text, **failing},
            Does.RUN: {"SIM_RUN_TIME": "forever"},
            Does.RUN_STUBBORNLY: {"SIM_RUN_TIME": "forever", "SIM_STOP_TIME": "forever"},
            Does.LEAVE_IN_PEACE: {"SIM_RUN_TIME": "forever", "SIM_STOP_TIME": "20ms"},
            Does.SAVE_STATE: {"SIM_RUN_TIME": "forever", "SIM_STOP_TIME": "20ms"},
            Does.WAIT_FOR_GATE: {"SIM_RUN_TIME": "forever"},
            Does.FAIL_AT_FIRST: {
                "SIM_RUN_TIME": "40ms",
                "SIM_MEMBER_FAILURES": str(behaviour.times),
                "SIM_EXIT_CODE": str(behaviour.code or 1),
            },
        }
        return {"command": ["simulated"], "env": variables[behaviour.does]}

    def open_gate(self, run: str) -> None:
        self.simulated.finish(run)

    def living(self, run: str) -> int:
        cluster = self.simulated.cluster
        cluster.advance(self.now())
        return cluster.runs[run].living(cluster.now) if run in cluster.runs else 0

    def ready(self, run: str) -> int:
        return self.living(run)

    def now(self) -> float:
        return boottime()


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[SimulatedLab]:
    lab = SimulatedLab(tmp_path)
    await lab.simulated.open()
    try:
        yield lab
    finally:
        await lab.simulated.close()


class TestSimulatedRuntime(RuntimeConformance):
    """The suite, on a model."""


async def test_runs_go_on_while_no_agent_is_there(lab: SimulatedLab) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS, extra={"env": {"SIM_RUN_TIME": "200ms"}})))
    await until_state(lab, A, RunState.RUNNING)
    await lab.simulated.close()
    over_at = lab.now() + 0.2
    await eventually(lambda: lab.now() > over_at, "the run is over")
    await lab.restart()
    assert lab.runtime.held()[A].state is RunState.SUCCEEDED


async def test_two_agents_on_one_directory_are_refused(lab: SimulatedLab) -> None:
    with pytest.raises(RuntimeRefusedError, match="another agent"):
        await SimulatedRuntime(CLUSTER, state_dir=lab.state_dir).open()


async def test_a_line_that_a_crash_cut_off_is_passed_over(lab: SimulatedLab) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS)))
    await lab.simulated.close()
    with (lab.state_dir / "simulated.jsonl").open("a") as file:
        file.write('{"at": 1, "sto')
    await lab.restart()
    await lab.runtime.start(start_run(lab, B, Part(RUNS)))
    await lab.restart()
    assert {run: status.state for run, status in lab.runtime.held().items()} == {
        A: RunState.RUNNING,
        B: RunState.RUNNING,
    }


async def test_the_file_does_not_grow_with_what_was_forgotten(
    lab: SimulatedLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_module, "_LEAST_ENTRIES", 20)
    await lab.runtime.start(start_run(lab, A, Part(RUNS)))
    for number in range(200):
        run = f"beta-{number + 1:07d}-r1"
        await lab.runtime.start(start_run(lab, run, Part(SUCCEEDS)))
        await lab.runtime.forget(run)
    assert len((lab.state_dir / "simulated.jsonl").read_text().splitlines()) <= 1 + 20 + 10 * 2
    await lab.restart()
    assert {run: status.state for run, status in lab.runtime.held().items()} == {A: RunState.RUNNING}


UNRELIABLE = FleetCluster.model_validate(
    {
        "name": "weather",
        "groups": [
            {
                "name": "cpu",
                "count": 3,
                "resources": {"cpu": "4", "memory": "8Gi"},
                "foreign": [{"resources": {"cpu": "2"}, "every": "20s", "lasts": "1s-10s"}],
                "failures": {"every": "1m", "lasts": "10s"},
            },
            {
                "name": "spot",
                "count": 0,
                "resources": {"cpu": "8", "memory": "16Gi"},
                "provisioning": {"most": 4, "delay": "5s", "idle": "30s"},
            },
        ],
    }
)


async def test_a_cluster_taken_over_at_any_moment_is_the_one_that_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_module, "_LEAST_ENTRIES", 7)
    monkeypatch.setattr(runtime_module, "_ENTRIES_EACH", 1)
    now, seen = 1000.0, set[str]()

    def clock() -> float:
        return now

    lab = SimulatedLab(tmp_path)
    steady = SimulatedRuntime(UNRELIABLE, clock, seed=5, state_dir=tmp_path / "steady")
    broken = SimulatedRuntime(UNRELIABLE, clock, seed=5, state_dir=tmp_path / "broken")
    await steady.open()
    await broken.open()
    chance = random.Random(3)
    for number in range(120):
        now += chance.uniform(0, 4)
        order = start_run(
            lab,
            f"beta-{number + 1:07d}-r1",
            Part(RUNS, chance.randint(1, 3), cpu="2", extra={"env": {"SIM_RUN_TIME": f"{chance.randint(1, 30)}s"}}),
        )
        over = [run for run, status in steady.held().items() if status.state.is_terminal]
        for runtime in (steady, broken):
            await runtime.renew(now - 0.5)
            await runtime.start(order)
            for run in over[:2]:
                await runtime.forget(run)
        await broken.close()
        broken = SimulatedRuntime(UNRELIABLE, clock, seed=5, state_dir=tmp_path / "broken")
        await broken.open()
        assert broken.holder != steady.holder
        assert broken.held() == steady.held()
        assert await broken.capacity() == await steady.capacity()
        seen.update(status.state for status in steady.held().values())
    assert {RunState.PENDING, RunState.RUNNING, RunState.SUCCEEDED} <= seen
    await steady.close()
    await broken.close()


async def test_entries_that_the_state_holds_already_are_not_told_again(
    lab: SimulatedLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that dies between the two writes leaves the new state beside the old entries."""
    entries = lab.state_dir / "simulated.jsonl"
    await lab.runtime.start(start_run(lab, A, Part(RUNS)))
    old, holder = entries.read_bytes(), lab.runtime.holder
    monkeypatch.setattr(runtime_module, "_LEAST_ENTRIES", 0)
    monkeypatch.setattr(runtime_module, "_ENTRIES_EACH", 1)
    await lab.runtime.start(start_run(lab, B, Part(RUNS)))
    assert (lab.state_dir / "simulated.state").exists()
    seq = lab.runtime.held()[A].seq
    for torn in (old, b"", old[: len(old) // 2]):
        await lab.simulated.close()
        entries.write_bytes(torn)
        await lab.restart()
        assert set(lab.runtime.held()) == {A}, "what was told after the state was lost with its entries"
        assert (lab.runtime.held()[A].seq, lab.runtime.holder) == (seq, holder)


async def test_an_entry_that_finds_the_disk_full_is_not_there_at_all(lab: SimulatedLab) -> None:
    entries = lab.state_dir / "simulated.jsonl"
    await lab.runtime.start(start_run(lab, A, Part(RUNS)))
    whole = entries.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 10, limits[1]))
    try:
        with pytest.raises(OSError, match="No space left"):
            await lab.runtime.start(start_run(lab, B, Part(RUNS)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert entries.read_bytes() == whole
    await lab.runtime.start(start_run(lab, C, Part(RUNS)))
    await lab.restart()
    assert set(lab.runtime.held()) == {A, C}


async def test_the_disconnect_limit_counts_from_the_last_answer_across_a_restart(tmp_path: Path) -> None:
    now = 100.0

    def runtime() -> SimulatedRuntime:
        return SimulatedRuntime(CLUSTER, lambda: now, state_dir=tmp_path)

    lab, first = SimulatedLab(tmp_path), runtime()
    await first.open()
    await first.renew(95.0)
    await first.start(start_run(lab, A, Part(RUNS), disconnect=20.0, stopGrace="0s"))
    await first.close()
    now = 95.0 + 20.0 - 1.0
    second = runtime()
    await second.open()
    assert second.held()[A].state is RunState.LOST
    await second.close()


async def test_another_declaration_is_another_cluster(lab: SimulatedLab) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS)))
    await lab.simulated.close()
    other = SimulatedRuntime(CLUSTER.model_copy(update={"speed": 2.0}), state_dir=lab.state_dir)
    await other.open()
    assert other.held() == {}
    assert other.holder != lab.runtime.holder
    await other.close()


async def test_without_a_directory_each_process_is_another_holder() -> None:
    assert SimulatedRuntime(CLUSTER).holder != SimulatedRuntime(CLUSTER).holder


async def test_held_is_the_same_mapping_and_only_what_changed_is_new(lab: SimulatedLab) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS)))
    await lab.runtime.start(start_run(lab, B, Part(RUNS)))
    held = lab.runtime.held()
    before = dict(held)
    await lab.runtime.stop(stop_run(B))
    assert lab.runtime.held() is held
    assert held[A] is before[A]
    assert held[B] is not before[B]


async def test_time_may_be_injected() -> None:
    now = 0.0
    runtime = SimulatedRuntime(CLUSTER, lambda: now)
    await runtime.open()
    await runtime.start(start_run(SimulatedLab(Path()), A, Part(RUNS, extra={"env": {"SIM_RUN_TIME": "1d"}})))
    assert runtime.held()[A].state is RunState.RUNNING
    now = 86_400.0
    assert runtime.held()[A].state is RunState.SUCCEEDED
    await runtime.close()
