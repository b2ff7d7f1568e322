"""``%%trainmaster`` in a real shell of IPython, on a real dispatcher whose agent runs members as processes."""

import asyncio
import base64
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ADMIN_KEY, Service
from tests.integration.test_sdk import local_agent
from tests.waiting import eventually

SHELL = Path(__file__).with_name("notebook_shell.py")
SECONDS = 120.0
PICTURE = b"\x89PNG\r\n\x1a\n"


@dataclass
class Notebook:
    """A shell of IPython as a process."""

    process: asyncio.subprocess.Process

    async def send(self, source: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"source": source}).encode() + b"\n")
        await self.process.stdin.drain()

    async def line(self) -> str:
        assert self.process.stdout is not None
        return (await asyncio.wait_for(self.process.stdout.readline(), SECONDS)).decode().strip()

    async def run(self, source: str) -> dict[str, Any]:
        await self.send(source)
        found: dict[str, Any] = json.loads(await self.line())
        return found

    async def value(self, source: str) -> str:
        """Return the value of a cell, which must not fail."""
        found = await self.run(source)
        assert found["error"] is None, found
        return str(found["value"])


@pytest.fixture
async def notebook(service: Service, tmp_path: Path) -> AsyncIterator[Notebook]:
    home = tmp_path / "home"
    home.mkdir()
    env = os.environ | {
        "TRAINMASTER_URL": service.url,
        "TRAINMASTER_API_KEY": ADMIN_KEY,
        "IPYTHONDIR": str(home),
        "HOME": str(home),
        "NO_COLOR": "1",
    }
    async with local_agent(service, tmp_path):
        process = await asyncio.create_subprocess_exec(
            sys.executable, SHELL, env=env, stdin=-1, stdout=-1, limit=1 << 20
        )
        made = Notebook(process)
        assert await made.line() == "ready"
        assert await made.value("%load_ext trainmaster") == "None"
        assert await made.value("%trainmaster --queue default --cpus 100m --memory 128Mi") == "None"
        yield made
        process.kill()
        await process.wait()


async def test_a_cell_runs_as_a_job_with_variables_in_and_out(notebook: Notebook, service: Service) -> None:
    await notebook.value("factor, history = 3, [1.5]\ndef scaled(number): return number * factor")
    found = await notebook.run(
        "%%trainmaster --in factor,history,scaled --out history,best --name scale --env MODE=fast\n"
        "import os\n"
        "history.append(scaled(7))\n"
        "best = {'mode': os.environ['MODE'], 'pair': (1, 2)}\n"
        "print('in the job', os.environ['TRAINMASTER_QUEUE'])\n"
        "max(history) + factor"
    )
    assert (found["error"], found["value"]) == (None, "24")
    first, *rest = found["stdout"].splitlines()
    job = first.removeprefix("job ")
    assert job.startswith("scale-")
    assert rest[0] == "in the job default"
    assert await notebook.value("history, best") == "([1.5, 21], {'mode': 'fast', 'pair': (1, 2)})"
    shown = await service.job(job)
    assert shown["state"] == "succeeded"
    assert shown["spec"]["roles"][0]["template"]["resources"] == {"cpu": "100m", "memory": "128Mi"}


async def test_output_comes_while_the_cell_runs_and_an_interrupt_cancels_its_job(
    notebook: Notebook, service: Service
) -> None:
    await notebook.send("%%trainmaster\nimport time\nprint('begun', flush=True)\ntime.sleep(600)")

    async def runs() -> bool:
        jobs = (await service.http.get("/v1/jobs")).json()["jobs"]
        return [job["state"] for job in jobs] == ["running"]

    await eventually(runs, SECONDS)
    await asyncio.sleep(2)  # for the output of the member, which comes while it runs
    notebook.process.send_signal(signal.SIGINT)
    found = json.loads(await notebook.line())
    assert found["error"] == "KeyboardInterrupt: "
    job = found["stdout"].splitlines()[0].removeprefix("job ")
    assert "begun" in found["stdout"].splitlines()
    assert f"job {job} is cancelled" in found["stderr"]
    assert (await service.until(job, "cancelled", seconds=30))["state"] == "cancelled"
    assert await notebook.value("1 + 1") == "2"


async def test_an_exception_of_a_cell_is_raised_with_the_line_of_the_cell(notebook: Notebook) -> None:
    found = await notebook.run("%%trainmaster\ndivisor = 0\n1 / divisor")
    assert found["error"] == "ZeroDivisionError: division by zero"
    assert 'File "<cell>", line 2' in found["cause"]
    assert "1 / divisor" in found["cause"]


async def test_figures_are_shown_where_they_fit(notebook: Notebook, tmp_path: Path) -> None:
    """The member has stand-ins for matplotlib and Pillow, whose figures are as large as the test says."""
    (tmp_path / "lib/matplotlib").mkdir(parents=True)
    (tmp_path / "lib/PIL").mkdir()
    (tmp_path / "lib/matplotlib/__init__.py").write_text("")
    (tmp_path / "lib/matplotlib/pyplot.py").write_text(
        "import os\n"
        "sizes = []\n"
        "class Figure:\n"
        "    def __init__(self, size): self.size = size\n"
        "    def savefig(self, file, format, dpi): file.write(os.urandom(self.size * dpi // 100))\n"
        "def get_fignums(): return list(range(1, len(sizes) + 1))\n"
        "def figure(number): return Figure(sizes[number - 1])\n"
    )
    (tmp_path / "lib/PIL/__init__.py").write_text("")
    (tmp_path / "lib/PIL/Image.py").write_text(
        "class Picture:\n"
        "    def __init__(self, data): self.data = data\n"
        "    def convert(self, mode): return self\n"
        "    def quantize(self, colors): return self\n"
        f"    def save(self, file, format, optimize): file.write({PICTURE!r} + self.data)\n"
        "def open(file): return Picture(file.getvalue())\n"
    )
    found = await notebook.run(
        f"%%trainmaster --env PYTHONPATH={tmp_path / 'lib'}\n"
        "import matplotlib.pyplot as plt\n"
        "plt.sizes[:] = [1000, 2500, 90_000]\n"
        "'drawn'"
    )
    assert (found["error"], found["value"]) == (None, "'drawn'")
    pictures = [base64.b64decode(one["image/png"]) for one in found["displays"] if "image/png" in one]
    # The first one fits as it is drawn first, the second only with fewer dots, the third not at all.
    assert [len(picture) for picture in pictures] == [len(PICTURE) + 720, len(PICTURE) + 1800]
    assert all(picture.startswith(PICTURE) for picture in pictures)
    assert "figure 3 is too large for the results of a job" in found["stderr"]


async def test_a_value_of_a_class_is_shown_and_loaded_only_where_the_user_says_so(notebook: Notebook) -> None:
    source = (
        "import fractions\n"
        "class Half(fractions.Fraction):\n"
        "    def _repr_html_(self): return '<b>half</b>'\n"
        "half = Half(1, 2)\n"
        "half"
    )
    found = await notebook.run(f"%%trainmaster\n{source}")
    assert (found["error"], found["value"]) == (None, "None")
    assert {"text/plain": "Half(1, 2)", "text/html": "<b>half</b>"} in found["displays"]
    refused = await notebook.run(f"%%trainmaster --out half\n{source}")
    assert refused["error"].startswith("TypeError: half is a Half: --out brings back numbers")
    assert await notebook.value(f"%%trainmaster --unpickle --out half\n{source}") == "Half(1, 2)"
    assert await notebook.value("half + 1") == "Fraction(3, 2)"


async def test_a_value_that_is_too_large_is_shown_by_the_begin_of_its_text(notebook: Notebook) -> None:
    found = await notebook.run("%%trainmaster\nimport random\n[random.random() for _ in range(5000)]")
    assert (found["error"], found["value"]) == (None, "None")
    (text,) = [one["text/plain"] for one in found["displays"] if "text/plain" in one]
    assert text.startswith("[0.")
    assert text.endswith("...")
    assert "the value, a list, is too large for the results of a job" in found["stderr"]


MISTAKES = {
    "%%trainmaster --queue nowhere\n1": "there is no queue 'nowhere'",
    "%%trainmaster --in missing, also\n1": "unrecognized arguments: also; %trainmaster --help lists the options",
    "%%trainmaster --in missing,also\n1": "--in: there is no variable missing, also",
    "%%trainmaster --gpus 0.x\n1": "--gpus: must be a number such as 1 or 0.5, not '0.x'",
    "%%trainmaster --env NAME\n1": "--env: must be NAME=VALUE, not 'NAME'",
    "%%trainmaster --job [1]\n1": "--job: no JSON object",
    "%%trainmaster --job {\n1": "--job: no JSON object: ",
    "%%trainmaster --name 'x\n1": "No closing quotation",
    "%%trainmaster --in large\n1": "at most 262144 are allowed",
    "%%trainmaster --out much\nimport os; much = os.urandom(9000)": "put what is large into a volume or a dataset",
    "%%trainmaster --queue ''\n1": "--queue is missing; to set it for all cells: %trainmaster --queue QUEUE",
}


async def test_mistakes_are_told_in_one_line(notebook: Notebook) -> None:
    await notebook.value("import os; large = os.urandom(300_000)")
    for source, expected in MISTAKES.items():
        found = await notebook.run(source)
        assert found["error"] is not None, source
        assert expected in found["error"], source
        assert found["error"].startswith("UsageError: "), source
    missing = await notebook.run("%%trainmaster --out never\n1")
    assert missing["error"] == "NameError: the cell has set no variable never, which --out names"
