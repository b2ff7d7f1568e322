"""Builds the files of a release from one commit: see scripts/dist, which installs what this needs."""

import argparse
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

ROOT = Path(__file__).resolve().parents[1]
PROJECTS = (".", "dispatcher", "agent", "migrations")
COMPONENTS = {
    "dispatcher": ("trainmaster", "trainmaster-dispatcher", "trainmaster-migrations"),
    "agent": ("trainmaster", "trainmaster-agent"),
    "demo": ("trainmaster", "trainmaster-dispatcher", "trainmaster-agent", "trainmaster-migrations"),
}
"""Own distributions by the list in requirements/ that they are installed with: of the two images, and of trainmaster[embedded]."""
_LOCKED = re.compile(r"^([a-z0-9._-]+)==([^ \\]+)((?: \\\n +--hash=sha256:[0-9a-f]{64})*)", re.MULTILINE)
_FORMAT_VERSION = 1


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, default=ROOT / "dist")
    out: Path = options.parse_args().out.resolve()
    if out.exists() and any(out.iterdir()):
        sys.exit(f"{out} is not empty: remove it, or choose another folder with --out")
    out.mkdir(parents=True, exist_ok=True)
    if said(["git", "status", "--porcelain", "--untracked-files=no"]):
        note("changes that are not committed are not built")
    commit, epoch = said(["git", "log", "-1", "--format=%H %ct"]).split()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "--extract", "--directory", source], input=archive, check=True)
        version = tomllib.loads((source / "pyproject.toml").read_text())["project"]["version"]
        build_wheels(source, out, epoch)
        for chart in ("dispatcher", "agent"):
            check_chart(package_chart(source / "deploy/charts" / chart, out, int(epoch)))
        for name, own in COMPONENTS.items():
            text = components(source / "requirements" / f"{name}.txt", own, version, commit, int(epoch))
            (out / f"trainmaster-{name}-{version}.cdx.json").write_text(text)
        build_images(source, out, version, epoch)
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(out.iterdir())]
    (out / "SHA256SUMS").write_text("".join(lines))
    sys.stdout.write(f"{out}: {len(lines)} files of commit {commit[:12]}, version {version}\n")


def note(text: str) -> None:
    sys.stderr.write(f"note: {text}\n")


def said(command: list[str]) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def build_wheels(source: Path, out: Path, epoch: str) -> None:
    """Build a wheel and an sdist of each distribution."""
    env = os.environ | {"SOURCE_DATE_EPOCH": epoch}
    for project in PROJECTS:
        command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--sdist", "--outdir", str(out)]
        done = subprocess.run([*command, str(source / project)], env=env, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"the distribution in {project} cannot be built: {done.stdout[-2000:]}{done.stderr[-2000:]}")


def package_chart(chart: Path, out: Path, epoch: int) -> Path:
    """Write a chart as ``helm package`` does, which would write the time of the call into it; return the file."""
    about = dict(re.findall(r"^(name|version): (\S+)$", (chart / "Chart.yaml").read_text(), re.MULTILINE))
    packed = out / f"{about['name']}-{about['version']}.tgz"
    inner = BytesIO()
    with tarfile.open(fileobj=inner, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for file in sorted(path for path in chart.rglob("*") if path.is_file()):
            entry = tarfile.TarInfo(f"{about['name']}/{file.relative_to(chart).as_posix()}")
            entry.size, entry.mtime, entry.mode = file.stat().st_size, epoch, 0o644
            archive.addfile(entry, BytesIO(file.read_bytes()))
    packed.write_bytes(gzip.compress(inner.getvalue(), mtime=epoch))
    return packed


def check_chart(packed: Path) -> None:
    """Let helm read the chart, where there is one."""
    if shutil.which("helm") is None:
        note(f"{packed.name} was not checked, as helm is not on the path")
        return
    subprocess.run(["helm", "show", "chart", str(packed)], check=True, stdout=subprocess.DEVNULL)


def locked(list_of: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Yield name, version and hashes of each package of a list."""
    for name, version, hashes in _LOCKED.findall(list_of.read_text()):
        yield name, version, re.findall("sha256:([0-9a-f]{64})", hashes)


def components(list_of: Path, own: tuple[str, ...], version: str, commit: str, epoch: int) -> str:
    """Return the CycloneDX document of what is installed together: locked packages with the hashes of their files, and our own."""
    title = f"trainmaster-{list_of.stem}"
    bom = Bom(version=_FORMAT_VERSION, serial_number=uuid5(NAMESPACE_URL, f"{title}@{commit}"))
    bom.metadata.timestamp = datetime.fromtimestamp(epoch, UTC)
    bom.metadata.component = Component(name=title, version=version, type=ComponentType.APPLICATION, bom_ref=title)
    parts = [_component(name, version, []) for name in own]
    parts += [_component(name, locked_version, hashes) for name, locked_version, hashes in locked(list_of)]
    bom.components.update(parts)
    bom.register_dependency(bom.metadata.component, parts)
    document = json.loads(JsonV1Dot6(bom).output_as_string())
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def _component(name: str, version: str, hashes: list[str]) -> Component:
    purl = PackageURL(type="pypi", name=name, version=version)
    # One of these is the file that is installed, depending on the machine.
    properties = [Property(name="trainmaster:locked-sha256", value=value) for value in hashes]
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        purl=purl,
        bom_ref=purl.to_string(),
        properties=properties,
    )


def build_images(source: Path, out: Path, version: str, epoch: str) -> None:
    """Build both images where there is a builder."""
    builder = next((name for name in ("buildah", "docker") if is_usable(name)), None)
    if builder is None:
        note("no image is built, as neither buildah nor a running docker is here")
        return
    for target in ("dispatcher", "agent"):
        tag, file = f"trainmaster-{target}:{version}", out / f"trainmaster-{target}-{version}.image.tar"
        if builder == "buildah":
            run(["buildah", "build", "--timestamp", epoch, "--target", target, "--tag", tag, str(source)])
            run(["buildah", "push", tag, f"oci-archive:{file}"])
        else:
            run(
                [
                    "docker",
                    "build",
                    "--build-arg",
                    f"SOURCE_DATE_EPOCH={epoch}",
                    "--target",
                    target,
                    "--tag",
                    tag,
                    str(source),
                ]
            )
            run(["docker", "save", "--output", str(file), tag])


def is_usable(builder: str) -> bool:
    """Return whether a builder of images is on the path and works."""
    return (
        shutil.which(builder) is not None
        and subprocess.run([builder, "info"], capture_output=True, check=False).returncode == 0
    )


def run(command: list[str]) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
