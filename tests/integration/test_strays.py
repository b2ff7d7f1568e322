"""Members of runs that the local runtime has no record of: found by what the kernel knows of them, and ended."""

import shutil
import signal
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.conformance.runtime_suite import Behaviour, Does, Part, start_run, stop_run, until_state
from tests.integration.test_local_runtime import CLUSTER, LocalLab
from tests.waiting import eventually
from trainmaster.protocol.agent import StopRun
from trainmaster.protocol.ids import job_id
from trainmaster.protocol.states import RunState
from trainmaster_agent.runtime.local import layout, process_table, strays
from trainmaster_agent.runtime.local.runtime import LocalRuntime

OURS, ANOTHER = "installation-1", "installation-2"


class Scene:
    """A run of one agent, and the runtime of a second agent on this machine with a folder of its own."""

    def __init__(self, lab: LocalLab, other: LocalRuntime) -> None:
        self.lab = lab
        self.other = other
        # Other tests run on this machine at the same time, and the search sees all of it.
        self.run = f"{job_id('stray', uuid.uuid4().int % 2**34)}-r1"

    async def start(self, does: Does = Does.RUN, installation: str = OURS) -> None:
        order = start_run(self.lab, self.run, Part(Behaviour(does), 2)).model_copy(
            update={"installation": installation}
        )
        await self.lab.runtime.renew(self.lab.now())
        await self.lab.runtime.start(order)
        await until_state(self.lab, self.run, RunState.RUNNING)

        async def are_ready() -> bool:
            return self.lab.ready(self.run) == 2

        await eventually(are_ready)

    def members(self) -> list[int]:
        return [pid for family in strays.families(self.run) for pid in family.members]

    async def clear(self, grace: float = 1.0, installation: str = OURS) -> None:
        """Ask the second agent until it is sure that nothing of the run is left."""
        order: StopRun = stop_run(self.run, grace=grace)

        async def is_gone() -> bool:
            return await self.other.verify_absent(order, installation)

        assert not await is_gone(), "members are alive"
        await eventually(is_gone, 15)
        assert strays.families(self.run) == []

    def end(self) -> None:
        for family in strays.families(self.run):
            strays._kill(family)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    lab = LocalLab(tmp_path)
    other = LocalRuntime(tmp_path / "other", CLUSTER)
    await lab.local.open()
    await other.open()
    scene = Scene(lab, other)
    yield scene
    await other.close()
    await lab.local.close()
    scene.end()


async def test_a_run_that_nobody_has_is_absent_at_once(scene: Scene) -> None:
    assert await scene.other.verify_absent(stop_run(scene.run), OURS)


async def test_a_run_of_an_agent_that_is_gone_is_stopped_by_its_own_supervisor(scene: Scene) -> None:
    await scene.start(Does.LEAVE_IN_PEACE)
    await scene.lab.local.close()
    await scene.clear()
    await scene.lab.reopen()
    status = await until_state(scene.lab, scene.run, RunState.CANCELLED)
    assert all(member.exit_code == 0 for member in status.members), "they had the time to leave"


async def test_members_that_do_not_heed_are_killed_once_their_grace_is_over(scene: Scene) -> None:
    await scene.start(Does.RUN_STUBBORNLY)
    await scene.lab.local.close()
    await scene.clear(grace=0.3)


@pytest.mark.parametrize("loss", ["deleted", "moved"])
async def test_a_run_is_found_though_its_records_are_not_where_they_were(scene: Scene, loss: str) -> None:
    await scene.start()
    await scene.lab.local.close()
    if loss == "deleted":
        shutil.rmtree(scene.lab.state_dir)
    else:
        scene.lab.state_dir.rename(scene.lab.folder / "elsewhere")
    await scene.clear(grace=0.2)


async def test_members_outlive_a_supervisor_only_for_a_moment_and_are_found_meanwhile(scene: Scene) -> None:
    await scene.start()
    supervisor = scene.lab.supervisor(scene.run)
    await scene.lab.local.close()
    assert [family.supervisor for family in strays.families(scene.run)] == [supervisor]
    process_table.send(supervisor, signal.SIGKILL)
    assert await scene.other.verify_absent(stop_run(scene.run), OURS) in (True, False)

    async def is_gone() -> bool:
        return await scene.other.verify_absent(stop_run(scene.run), OURS)

    await eventually(is_gone)
    assert scene.members() == []


async def test_a_run_of_another_dispatcher_with_the_same_id_is_none_of_ours(scene: Scene) -> None:
    await scene.start(installation=ANOTHER)
    there = scene.members()
    assert await scene.other.verify_absent(stop_run(scene.run), OURS)
    assert scene.members() == there


async def test_a_run_that_may_be_of_another_dispatcher_is_left_alone_and_not_called_absent(scene: Scene) -> None:
    """Releases before this one started runs without the variable that identifies the dispatcher."""
    await scene.start(installation="")
    there = scene.members()
    for _ in range(2):
        assert not await scene.other.verify_absent(stop_run(scene.run), OURS)
    assert scene.members() == there


async def test_an_agent_that_holds_a_run_or_knows_no_installation_verifies_nothing(scene: Scene) -> None:
    await scene.start()
    assert not await scene.lab.runtime.verify_absent(stop_run(scene.run), OURS)
    assert not await scene.other.verify_absent(stop_run("none-0000001-r1"), "")


def test_a_place_is_one_boot_one_process_namespace_and_one_user() -> None:
    boot, namespace, user = strays.place().split("/")
    assert boot == layout.boot_id()
    assert namespace.startswith("pid:[")
    assert user.isdecimal()
