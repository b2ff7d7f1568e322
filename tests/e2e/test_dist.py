"""The files of a release: whole, of one version, the same for one commit, with lists of what they bring."""

import hashlib
import json
import os
import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests import locked
from tests.compose_file import ROOT

pytestmark = pytest.mark.wheel
OWN = {
    "dispatcher": {"trainmaster", "trainmaster-dispatcher", "trainmaster-migrations"},
    "agent": {"trainmaster", "trainmaster-agent"},
    "demo": {"trainmaster", "trainmaster-agent", "trainmaster-dispatcher", "trainmaster-migrations"},
}
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def build(out: Path, **env: str) -> Path:
    command: list[str | Path] = [ROOT / "scripts/dist", "--out", out]
    done = subprocess.run(command, env=os.environ | env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (ROOT / ".git").exists():
        pytest.skip("a release is built from a commit, and this is no checkout")
    return build(tmp_path_factory.mktemp("dist") / "one")


def sums(folder: Path) -> dict[str, str]:
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    return {name: digest for digest, name in (line.split("  ") for line in lines)}


def test_every_file_has_its_checksum(dist: Path) -> None:
    found = sums(dist)
    assert found.keys() == {file.name for file in dist.iterdir()} - {"SHA256SUMS"}
    assert {name: hashlib.sha256((dist / name).read_bytes()).hexdigest() for name in found} == found


def test_all_that_is_handed_out_has_one_version(dist: Path) -> None:
    names = {file.name for file in dist.iterdir()}
    for project in ("trainmaster", "trainmaster_dispatcher", "trainmaster_agent", "trainmaster_migrations"):
        assert {f"{project}-{VERSION}-py3-none-any.whl", f"{project}-{VERSION}.tar.gz"} <= names
        with zipfile.ZipFile(dist / f"{project}-{VERSION}-py3-none-any.whl") as wheel:
            about = wheel.read(f"{project}-{VERSION}.dist-info/METADATA").decode()
        assert f"\nVersion: {VERSION}\n" in about
    for chart in ("trainmaster", "trainmaster-agent"):
        with tarfile.open(dist / f"{chart}-{VERSION}.tgz") as packed:
            files = set(packed.getnames())
        assert {f"{chart}/Chart.yaml", f"{chart}/values.yaml", f"{chart}/values.schema.json"} <= files
        assert any(name.startswith(f"{chart}/templates/") for name in files)


@pytest.mark.parametrize("name", OWN)
def test_a_list_of_components_names_exactly_what_is_locked(dist: Path, name: str) -> None:
    document = json.loads((dist / f"trainmaster-{name}-{VERSION}.cdx.json").read_text())
    assert document["bomFormat"] == "CycloneDX"
    found = {one["name"]: one["version"] for one in document["components"]}
    assert found == locked.versions(name) | dict.fromkeys(OWN[name], VERSION)
    for one in document["components"]:
        assert one["purl"] == f"pkg:pypi/{one['name']}@{one['version']}"
        assert one["name"] in OWN[name] or one["properties"], "the hashes of its files"


def test_the_same_commit_gives_the_same_files(dist: Path, tmp_path: Path) -> None:
    images = {name: digest for name, digest in sums(dist).items() if name.endswith(".image.tar")}
    again = sums(build(tmp_path / "two", TZ="Asia/Tokyo", LC_ALL="C", PYTHONHASHSEED="7"))
    assert again == sums(dist) | {name: again[name] for name in images}


def test_nothing_is_overwritten(dist: Path) -> None:
    before = sums(dist)
    refused = subprocess.run([ROOT / "scripts/dist", "--out", dist], capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "is not empty" in refused.stderr
    assert sums(dist) == before
