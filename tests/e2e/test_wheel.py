"""The wheels that people install: built, put into a clean environment, and brought up once."""

import os
import signal
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests import image, locked
from tests.waiting import eventually_sync
from trainmaster_dispatcher.cli.embedded import free_port
from trainmaster_dispatcher.web.assets import ASSETS

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.wheel


def run(*words: str | Path, **options: object) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=900, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    return done  # type: ignore[no-any-return]


def test_the_installed_wheels_come_up_and_run_a_job(tmp_path: Path) -> None:
    for project in (ROOT, ROOT / "dispatcher", ROOT / "agent", ROOT / "migrations"):
        run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path / "dist", project)
    (wheel,) = (tmp_path / "dist").glob("trainmaster_dispatcher-*.whl")
    built = {
        f"trainmaster_dispatcher/web/assets/{path.relative_to(ASSETS)}" for path in ASSETS.rglob("*") if path.is_file()
    }
    assert built <= set(zipfile.ZipFile(wheel).namelist()), "the dashboard, where this checkout has built it"
    venv.create(tmp_path / "venv", with_pip=False)
    clean = tmp_path / "venv" / "bin"
    install = (image.UV, "pip", "install", "--quiet", "--python", clean / "python")
    (tmp_path / "constraints.txt").write_text(locked.constraints("demo"))
    found = ("--constraint", tmp_path / "constraints.txt", "--find-links", tmp_path / "dist")
    run(*install, *found, "trainmaster[embedded]")
    image.share_bytecode(image.Installed(tmp_path / "venv"))
    run(clean / "python", "-m", "compileall", "-q", tmp_path / "venv" / "lib")
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    env |= {"TRAINMASTER_CONFIG": str(tmp_path / "config.yaml"), "PATH": f"{clean}:{env['PATH']}"}
    log = (tmp_path / "up.log").open("w+b")
    command = [clean / "trainmaster", "up", "--data", tmp_path / "data", "--port", str(free_port())]
    up = subprocess.Popen([str(word) for word in command], cwd=tmp_path, env=env, stdout=log, stderr=log)
    try:
        eventually_sync(lambda: "Trainmaster is up" in (tmp_path / "up.log").read_text() or up.poll() is not None, 200)
        assert up.poll() is None, (tmp_path / "up.log").read_text()
        run(clean / "trainmaster", "submit", ROOT / "examples" / "hello.yaml", "--wait", cwd=tmp_path, env=env)
        listed = run(clean / "trainmaster", "jobs", cwd=tmp_path, env=env).stdout
        assert "succeeded" in listed
    finally:
        up.send_signal(signal.SIGINT)
        assert up.wait(60) == 0
        log.close()
