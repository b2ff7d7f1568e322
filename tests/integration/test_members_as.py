"""Members of a local cluster whose agent root runs, as another user: they reach their own folder and none of the secrets."""

import os
import pwd
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import typer

from tests.conformance.runtime_suite import (
    RUNS,
    SUCCEEDS,
    A,
    Part,
    eventually,
    start_run,
    until,
    until_over,
)
from tests.integration.test_local_runtime import CLUSTER, LocalLab, script
from trainmaster.cli.process import user_ids
from trainmaster.protocol.states import RunState
from trainmaster_agent.runtime.local import process_table
from trainmaster_agent.runtime.local.runtime import LocalRuntime
from trainmaster_dispatcher.cli import up
from trainmaster_dispatcher.cli.embedded import private_file

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes of another user")

USER = pwd.getpwnam("nobody")


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[LocalLab]:
    lab = LocalLab(tmp_path)
    lab.local = LocalRuntime(lab.state_dir, CLUSTER, user_ids("nobody"))
    await lab.local.open()
    try:
        yield lab
    finally:
        await lab.end()


async def test_members_run_as_the_user_and_write_into_their_own_folder(lab: LocalLab) -> None:
    show = script('id -u; id -g; id -G; echo "$HOME" > mine; cat mine; pwd')
    await lab.runtime.start(start_run(lab, A, Part(SUCCEEDS, extra=show)))
    assert (await until_over(lab, A)).state is RunState.SUCCEEDED, lab.output(A)
    own = str(lab.run_dir(A) / "worker-0")
    assert lab.output(A).split() == [str(USER.pw_uid), str(USER.pw_gid), str(USER.pw_gid), own, own]
    assert (lab.run_dir(A) / "worker-0" / "mine").stat().st_uid == USER.pw_uid


async def test_the_first_member_leaves_results_although_it_may_not_pass_through_the_agents_folders(
    lab: LocalLab,
) -> None:
    leave = script('cd /; echo "{\\"a\\": 1}" >"$TRAINMASTER_RESULTS"; echo "$TRAINMASTER_RESULTS"')
    await lab.runtime.start(start_run(lab, A, Part(SUCCEEDS, extra=leave)))
    status = await until_over(lab, A)
    assert (status.state, status.results) == (RunState.SUCCEEDED, {"a": 1}), lab.output(A)
    await eventually(lambda: not Path(lab.output(A).strip()).exists(), "the file is removed")


async def test_members_read_neither_keys_nor_what_the_agent_keeps(lab: LocalLab, tmp_path: Path) -> None:
    # The folders above are open to all, so that only the files' own rights count.
    for folder in (tmp_path, *tmp_path.parents[:2], lab.state_dir):
        folder.chmod(0o755)
    (tmp_path / "keys").mkdir()
    private_file(tmp_path / "keys" / "admin", "tmk_secret")
    secrets = [tmp_path / "keys" / "admin", lab.run_dir(A) / "record.json", lab.run_dir(A) / "plan.json"]
    tries = "; ".join(f"cat {path} && echo READ" for path in [*secrets, "/proc/$PPID/environ"])
    kills = "kill -9 $PPID && echo KILLED; touch ../taken && echo WRITTEN; true"
    await lab.runtime.start(start_run(lab, A, Part(SUCCEEDS, extra=script(f"{tries}; {kills}"))))
    assert (await until_over(lab, A)).state is RunState.SUCCEEDED, lab.output(A)
    output = lab.output(A)
    assert "secret" not in output
    assert not [word for word in ("READ", "KILLED", "WRITTEN") if word in output.split()]


async def test_members_die_with_their_supervisor_all_the_same(lab: LocalLab) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS)))
    await until(lab, A, lambda status: status.state is RunState.RUNNING)
    results = (lab.run_dir(A) / "worker-0.results").readlink()
    assert results.exists()
    os.kill(lab.supervisor(A), 9)
    await until_over(lab, A)
    assert not process_table.of_run(A, lab.run_dir(A))
    assert not results.exists()


def test_members_of_roots_own_installation_run_as_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    assert up._user_of_members(None, trust_submitters=False) == "nobody"
    assert "members run as the user nobody" in capsys.readouterr().err
    assert up._user_of_members(None, trust_submitters=True) is None
    assert "members run as root" in capsys.readouterr().err
    with pytest.raises(typer.Exit):
        up._user_of_members("nobody", trust_submitters=True)
    assert "exclude each other" in capsys.readouterr().err


def test_members_of_another_users_installation_run_as_that_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert up._user_of_members(None, trust_submitters=False) is None


def test_which_users_members_may_run_as(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert user_ids("nobody") == (USER.pw_uid, USER.pw_gid)
    for name, said in (
        ("no-such-user", "there is no user 'no-such-user'"),
        ("root", "may do anything on this machine"),
    ):
        with pytest.raises(typer.Exit):
            user_ids(name)
        assert said in capsys.readouterr().err
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(typer.Exit):
        user_ids("nobody")
    assert "only root may" in capsys.readouterr().err
