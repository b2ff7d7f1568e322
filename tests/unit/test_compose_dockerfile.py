"""The Dockerfile: pinned, without root, and made of files that exist."""

import re
import tomllib
from pathlib import Path

import pytest

from tests import dockerfile, locked
from tests.compose_file import ROOT

PARTS = ("dispatcher", "agent")
BUILDS = [dockerfile.chain(f"build-{part}") for part in PARTS]
LASTS = [dockerfile.chain(part) for part in PARTS]
BASE = dockerfile.stage("base")


def test_the_default_image_is_the_dispatchers_and_both_differ_only_in_what_is_installed() -> None:
    assert dockerfile.stages()[-1].name == "dispatcher"
    for part, last in zip(PARTS, LASTS, strict=True):
        assert last[0] == BASE
        (copy,) = last[1].instructions
        assert copy.words == [f"--from=build-{part}", "/opt/trainmaster", "/opt/trainmaster"]


@pytest.mark.parametrize("stage", [BASE, BUILDS[0][0]])
def test_images_are_pinned_to_a_patch_and_named_shortly(stage: dockerfile.Stage) -> None:
    assert re.fullmatch(r"python:\d+\.\d+\.\d+-slim-[a-z]+", stage.image)


def test_the_image_has_the_python_for_which_versions_are_locked() -> None:
    assert "--python-version 3.11 " in (ROOT / "scripts/lock").read_text()
    assert BASE.image.startswith("python:3.11.")


def test_it_does_not_run_as_root() -> None:
    (user,) = BASE.all("USER")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user.rest)
    assert f"--uid {user.rest.partition(':')[0]} " in " ".join(run.rest for run in BASE.all("RUN"))


def test_the_last_stage_installs_nothing_and_has_no_compiler() -> None:
    text = " ".join(run.rest for run in BASE.all("RUN"))
    assert not re.search(r"\b(pip|apt|apt-get|gcc|build-essential)\b", text)


def test_only_locked_files_are_installed() -> None:
    stages = dockerfile.stages()
    installs = [run.rest for stage in stages for run in stage.all("RUN") if "pip install" in run.rest]
    from_lists = [line for line in installs if " --requirement" in line or " -r " in line]
    assert from_lists
    assert all("--require-hashes" in line and "--no-deps" in line for line in from_lists)
    assert all(
        "dist/" in line and "--no-deps" in line and "pip check" in line for line in set(installs) - {*from_lists}
    )


@pytest.mark.parametrize("path", locked.LISTS, ids=lambda path: path.name)
def test_every_locked_package_has_a_version_and_hashes(path: Path) -> None:
    entries = path.read_text().replace("\\\n", " ").splitlines()
    assert entries
    for entry in entries:
        assert re.fullmatch(r"[a-z0-9._-]+==[^\s;]+( +--hash=sha256:[0-9a-f]{64})+", entry.strip()), entry[:100]


def test_the_image_has_the_versions_that_are_tested() -> None:
    tested, shipped = locked.versions("dev"), locked.versions("build")
    shipped |= locked.versions("dispatcher") | locked.versions("agent")
    assert shipped.items() <= tested.items()
    assert locked.versions("demo").items() <= tested.items()


def test_what_is_copied_exists_and_is_sent_to_the_builder() -> None:
    copied = [
        source for stage in dockerfile.stages() for copy in stage.all("COPY") for source in dockerfile.sources(copy)
    ]
    assert copied
    assert [source for source in copied if not (ROOT / source).exists()] == []
    assert [source for source in copied if not dockerfile.is_sent(source)] == []


@pytest.mark.parametrize(
    "path",
    [".env", ".git", ".venv", "tests", "trainmaster/__pycache__", "requirements/demo.txt", "requirements/dev.txt"],
)
def test_what_the_image_does_not_need_is_not_sent(path: str) -> None:
    assert not dockerfile.is_sent(path)


def test_the_modules_are_sent() -> None:
    assert dockerfile.is_sent("trainmaster/cli/main.py")
    assert dockerfile.is_sent("dispatcher/trainmaster_dispatcher/api/app.py")
    assert dockerfile.is_sent("agent/pyproject.toml")
    assert dockerfile.is_sent("migrations/trainmaster_migrations/env.py")


def test_its_labels_say_what_it_is() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    labels = dict(word.split("=", 1) for label in BASE.all("LABEL") for word in label.words)
    assert labels["org.opencontainers.image.version"] == project["version"]
    assert labels["org.opencontainers.image.licenses"] == project["license"]


def test_the_command_comes_from_compose_and_so_does_the_health_check() -> None:
    assert [instruction.rest for instruction in BASE.all("ENTRYPOINT")] == ['["trainmaster"]']
    assert [instruction.rest for instruction in BASE.all("HEALTHCHECK")] == ["NONE"]
