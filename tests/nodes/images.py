"""Images without a registry: archives of one layer that containerd imports, made of the static ``busybox`` program of the machine, and
of the Python that runs the tests.
"""

import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

PAUSE = "registry.k8s.io/pause:3.10"
BUSYBOX = "registry.example.com/busybox:1"
"""Has all that busybox can do, runs as root, and has a ``kill`` program."""
PYTHON = "registry.example.com/python:1"
"""Has busybox, and ``python3`` with the standard library."""
AGENT = "registry.example.com/agent:1"
"""Has Python, as ``python`` too, and those modules of the agent that its containers in pods run."""
_OF_THE_AGENT = ("trainmaster/__init__.py", "trainmaster/archives.py", "trainmaster_agent/__init__.py",
                 "trainmaster_agent/files/__init__.py", "trainmaster_agent/files/program.py",
                 "trainmaster_agent/images/__init__.py", "trainmaster_agent/images/credentials.py",
                 "trainmaster_agent/images/program.py", "trainmaster_agent/images/references.py",
                 "trainmaster_agent/images/registry.py")  # fmt: skip
WITH_ENTRY_POINT = "registry.example.com/team/train:1"
"""Has Python, and an entry point that prints its argument; its configuration is in a registry as well."""
ENTRY_POINT = {
    "Entrypoint": ["sh", "-c", 'echo "$0: element $TRAINMASTER_ELEMENT, $*"', "entry"],
    "Cmd": ["as the image says"],
}
MISSING = "registry.example.com/missing:1"
"""Is on no node, and its registry does not exist."""


def static_busybox() -> Path | None:
    """Return the path of a ``busybox`` that runs without libraries, or None."""
    found = shutil.which("busybox")
    if found is None:
        return None
    needs_libraries = subprocess.run(["ldd", found], capture_output=True, check=False).returncode == 0
    return None if needs_libraries else Path(found)


def write_archives(busybox: Path, folder: Path) -> list[Path]:
    """Write the archives of all images to the folder; return their paths."""
    applets = subprocess.run([busybox, "--list"], capture_output=True, check=True, text=True).stdout.split()
    layer = _layer(busybox, applets)
    return [
        _archive(folder / "pause.tar", PAUSE, layer, ["/bin/busybox", "sleep", "2147483647"]),
        _archive(folder / "busybox.tar", BUSYBOX, layer, ["/bin/sh"]),
        _archive(folder / "python.tar", PYTHON, _layer(busybox, applets, with_python=True), ["/bin/sh"]),
        _archive(folder / "agent.tar", AGENT, _layer(busybox, applets, with_python=True, with_agent=True), ["/bin/sh"]),
        _archive(folder / "train.tar", WITH_ENTRY_POINT, _layer(busybox, applets, with_python=True), **ENTRY_POINT),
    ]


_LEFT_OUT = (
    "test",
    "tests",
    "site-packages",
    "__pycache__",
    "idlelib",
    "tkinter",
    "ensurepip",
    "lib2to3",
    "turtledemo",
)
"""Folders of the standard library that no member needs."""


def _add_python(layer: tarfile.TarFile) -> None:
    """Add this Python in ``/python``, where any user may read it, the libraries that it is linked with, and a link to it."""
    base = Path(sys.base_prefix)
    program = base / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = Path(sysconfig.get_path("stdlib"))
    linked = set(re.findall(r"(/\S+) \(0x", _printed("ldd", str(program))))
    for module in (library / "lib-dynload").glob("*.so"):
        linked |= set(re.findall(r"(/\S+) \(0x", _printed("ldd", str(module))))
    c_library = next(Path(path) for path in sorted(linked) if Path(path).name.startswith("libc.so"))
    for path in map(Path, sorted(linked)):
        # The loader looks beside the C library for what it may not read elsewhere.
        place = c_library.parent / path.name if path.is_relative_to(base) else path
        _add(layer, str(place).lstrip("/"), path.read_bytes(), 0o755)
    _add(layer, f"python/bin/{program.name}", program.read_bytes(), 0o755)
    for path in sorted(library.rglob("*")):
        parts = path.relative_to(library).parts
        if path.is_file() and not any(part in _LEFT_OUT or part.startswith("config-") for part in parts):
            _add(layer, f"python/{path.relative_to(base)}", path.read_bytes())
    link = _entry("bin/python3", tarfile.SYMTYPE, 0o777)
    link.linkname = f"/python/bin/{program.name}"
    layer.addfile(link)


def _add_agent(layer: tarfile.TarFile) -> None:
    """Add the agent's modules where its Python finds them."""
    packages = Path("python/lib") / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for module in _OF_THE_AGENT:
        package, _, inner = module.partition("/")
        spec = find_spec(package)
        assert spec is not None
        found = Path(str(spec.origin)).parent / inner
        _add(layer, str(packages / module), found.read_bytes())
    link = _entry("bin/python", tarfile.SYMTYPE, 0o777)
    link.linkname = "python3"
    layer.addfile(link)


def _printed(*words: str) -> str:
    return subprocess.run(words, capture_output=True, check=False, text=True).stdout


def _layer(busybox: Path, applets: Sequence[str], *, with_python: bool = False, with_agent: bool = False) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as layer:
        for name, mode in (("bin", 0o755), ("etc", 0o755), ("root", 0o700), ("tmp", 0o1777)):
            layer.addfile(_entry(name, tarfile.DIRTYPE, mode))
        for name, text in (
            ("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n"),
            ("etc/nsswitch.conf", "hosts: files dns\n"),
        ):
            _add(layer, name, text.encode())
        _add(layer, "bin/busybox", busybox.read_bytes(), 0o755)
        for applet in applets:
            if applet != "busybox":
                link = _entry(f"bin/{Path(applet).name}", tarfile.SYMTYPE, 0o777)
                link.linkname = "busybox"
                layer.addfile(link)
        if with_python:
            _add_python(layer)
        if with_agent:
            _add_agent(layer)
    return out.getvalue()


def _archive(path: Path, name: str, layer: bytes, Cmd: Sequence[str], Entrypoint: Sequence[str] = ()) -> Path:  # noqa: N803
    """Write an archive as ``docker save`` does."""
    diff_id = hashlib.sha256(layer).hexdigest()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "created": "2026-01-01T00:00:00Z",
            "config": {"Entrypoint": list(Entrypoint) or None, "Cmd": list(Cmd), "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{diff_id}"]},
            "history": [{"created": "2026-01-01T00:00:00Z"}],
        }
    ).encode()
    config_name, layer_name = f"{hashlib.sha256(config).hexdigest()}.json", f"{diff_id}/layer.tar"
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": [layer_name]}]
    with tarfile.open(path, "w") as archive:
        _add(archive, layer_name, layer)
        _add(archive, config_name, config)
        _add(archive, "manifest.json", json.dumps(manifest).encode())
    return path


def _entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.mode = kind, mode
    return made


def _add(archive: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    entry = _entry(name, tarfile.REGTYPE, mode)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))
