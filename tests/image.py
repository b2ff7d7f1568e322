"""The environments of the images, made as the Dockerfile says, in folders. Builds no image."""

import os
import shlex
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from importlib.util import cache_from_source
from pathlib import Path

import httpx
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import dockerfile
from tests.compose_file import ROOT

UV = Path(sys.prefix) / "bin" / "uv"
"""The installer of the environment of the tests."""
_PLACE = "/opt/trainmaster"
"""Where the image has its virtual environment."""


@dataclass(frozen=True, slots=True)
class Installed:
    """A virtual environment with the product in it."""

    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    @property
    def program(self) -> list[str]:
        """The image's entry point."""
        (entry,) = dockerfile.stage("base").all("ENTRYPOINT")
        (name,) = entry.array
        return [str(self.folder / "bin" / name)]

    @property
    def site(self) -> Path:
        (site,) = self.folder.glob("lib/python3.*/site-packages")
        return site

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that the images set."""
        here = {"PATH": os.environ["PATH"]}
        for instruction in dockerfile.stage("base").all("ENV"):
            for word in instruction.words:
                name, _, value = word.partition("=")
                value = value.replace(_PLACE, str(self.folder)).replace("$PATH", here["PATH"])
                here[name] = "127.0.0.1" if value == "0.0.0.0" else value  # noqa: S104 - only compared
        return here

    def run(self, program: str, *words: str) -> str:
        """Run a program of the environment; return its standard output. Fails the test when it does not end with 0."""
        done = subprocess.run(
            [self.folder / "bin" / program, *words],
            cwd=self.folder,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def install(part: str, folder: Path, sibling: Path | None = None) -> Installed:
    """Do below ``folder`` what the stages of the Dockerfile do that make the environment of the image ``part``.

    ``sibling``: the folder of another image, whose stages have installed the tools and made the wheels already, as for all images.
    """
    build, installed = folder / "build", Installed(folder / "opt")
    tools = (sibling or folder) / "python"
    if sibling is None:
        venv.create(tools, with_pip=True)
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    env["PATH"] = f"{tools / 'bin'}:{env['PATH']}"
    build.mkdir()
    for instruction in (one for stage in dockerfile.chain(f"build-{part}") for one in stage.instructions):
        match instruction.word:
            case "COPY":
                *sources, target = instruction.words
                if sources[0].startswith("--from="):
                    # What another stage builds in the same place, this checkout has built by then.
                    sources = [source.removeprefix("/build/") for source in sources[1:]]
                for source in sources:
                    _copy(ROOT / source, build / target / Path(source).name if target.endswith("/") else build / target)
            case "RUN":
                if "compileall" in instruction.rest:
                    share_bytecode(installed)
                if sibling is not None and instruction.rest.startswith("pip "):
                    shutil.copytree(sibling / "build" / "dist", build / "dist", dirs_exist_ok=True)
                    continue
                command = instruction.rest.replace(_PLACE, str(installed.folder))
                done = subprocess.run(
                    ["sh", "-ec", command], cwd=build, env=env, capture_output=True, text=True, timeout=900, check=False
                )
                assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            case "ENV":
                rest = instruction.rest.replace(_PLACE, str(installed.folder))
                env |= dict(word.split("=", 1) for word in shlex.split(rest))
            case "WORKDIR":
                assert instruction.rest == "/build"
            case other:
                raise AssertionError(f"{other} is not known to tests/image.py")
    return installed


def share_bytecode(installed: Installed) -> None:
    """Copy the bytecode of modules that the environment of the tests has as well: compiling them again takes half a minute of CPU."""
    ours = Path(httpx.__file__).parent.parent
    for source in installed.site.rglob("*.py"):
        twin = ours / source.relative_to(installed.site)
        compiled = Path(cache_from_source(str(twin)))
        if not compiled.exists() or source.read_bytes() != twin.read_bytes():
            continue
        target = Path(cache_from_source(str(source)))
        target.parent.mkdir(exist_ok=True)
        shutil.copy(compiled, target)
        written = twin.stat()
        os.utime(source, ns=(written.st_atime_ns, written.st_mtime_ns))  # bytecode holds for a time of its source


def alone(whole: Installed, distribution: str, folder: Path) -> Installed:
    """Make an environment with one distribution and what it requires, copied from another one; nothing is downloaded."""
    venv.create(folder, with_pip=False)
    part = Installed(folder)
    for found in _closure(whole.site, distribution):
        for file in found.files or ():
            source = Path(str(found.locate_file(file)))
            if ".." in file.parts or not source.is_file():
                continue  # a script in bin, or bytecode that was not made
            target = part.site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(source, target)
    script = Path(whole.program[0])
    (folder / "bin" / script.name).write_text(script.read_text().replace(str(whole.folder), str(folder)))
    (folder / "bin" / script.name).chmod(0o755)
    return part


def _closure(site: Path, distribution: str) -> Iterator[Distribution]:
    """Yield a distribution and all that it requires, directly or not."""
    every = {canonicalize_name(found.name): found for found in distributions(path=[str(site)])}
    wanted, visited = [(canonicalize_name(distribution), "")], set[tuple[str, str]]()
    while wanted:
        name, its_extra = one = wanted.pop()
        if one in visited:
            continue
        if name not in {before for before, _ in visited}:
            yield every[name]
        visited.add(one)
        for line in every[name].requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": its_extra}):
                wanted += [(canonicalize_name(requirement.name), each) for each in requirement.extras | {""}]


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(
            source, target, ignore=shutil.ignore_patterns("__pycache__", "node_modules"), dirs_exist_ok=True
        )
    else:
        shutil.copy(source, target)
