"""The demo, as ``scripts/demo --stay`` runs it once the packages are there: README's first command."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.e2e.test_up import Starter, starter
from tests.waiting import eventually_sync

__all__ = ["starter"]

ROOT = Path(__file__).resolve().parents[2]
_PATIENCE = 300.0
_IN_ALL = re.compile(r"^([0-9]+) of ([0-9]+) jobs as expected", re.MULTILINE)


def test_the_demo_runs_every_example_as_expected_and_what_it_says_to_try_works(
    starter: Starter, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    (tmp_path / "tmp").mkdir(mode=0o755)
    tmp_path.chmod(0o755)
    env = starter.env | {"TMPDIR": str(tmp_path / "tmp"), "PYTHONUNBUFFERED": "1"}
    with output.open("wb") as out:
        demo = subprocess.Popen(
            [sys.executable, "scripts/demo.py", "--stay"], cwd=ROOT, env=env, stdout=out, stderr=out
        )
    starter.started.append(demo)
    eventually_sync(lambda: "Ctrl-C stops it" in output.read_text() or demo.poll() is not None, _PATIENCE)
    said = output.read_text()
    assert demo.poll() is None, said
    counted = _IN_ALL.search(said)
    assert counted is not None, said
    assert counted[1] == counted[2], said
    assert "✗" not in said, said
    assert f"{counted[2]} jobs, 3 clusters" in (ROOT / "README.md").read_text()
    commands = [line.strip() for line in said.splitlines() if line.startswith("  trainmaster ")]
    assert len(commands) > 4
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=ROOT,
            env=env | {"PATH": path},
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    demo.send_signal(signal.SIGINT)
    assert demo.wait(_PATIENCE) == 130
    eventually_sync(lambda: not starter.living(), 30)
    assert list((tmp_path / "tmp").glob("trainmaster-demo-*")) == []
