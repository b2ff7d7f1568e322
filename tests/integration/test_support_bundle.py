"""A support bundle has what helps to find a fault, and no secret, wherever one was put."""

import asyncio
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.conftest import ADMIN_KEY, Service, job
from trainmaster.cli.secret_masking import MASK, masked, masked_setting
from trainmaster.protocol.states import Exit
from trainmaster_dispatcher.services.settings import Settings

PROGRAM = [sys.executable, "-m", "trainmaster.cli.main", "support-bundle"]


class Canaries:
    """Secrets that are put everywhere, each known by its place."""

    def __init__(self) -> None:
        self.all: dict[str, str] = {}

    def at(self, place: str) -> str:
        return self.all.setdefault(place, f"canary-{len(self.all):03}-Zx9Qw7Lp")


def unpacked(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        files = {name: archive.extractfile(name) for name in archive.getnames()}
        return {name.partition("/")[2]: file.read().decode() for name, file in files.items() if file is not None}


async def call(*words: str | Path, env: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    def run() -> "subprocess.CompletedProcess[str]":
        command = [*PROGRAM, *[str(word) for word in words]]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)

    return await asyncio.to_thread(run)


def environment(service: Service, folder: Path, canaries: Canaries) -> dict[str, str]:
    """Return an environment with a canary in every setting and in other variables that hold secrets."""
    settings = {f"TRAINMASTER_{name.upper()}": canaries.at(f"setting {name}") for name in Settings.model_fields}
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("TRAINMASTER_")},
        **settings,
        "DATABASE_URL": f"postgresql://user:{canaries.at('database')}@127.0.0.1:1/db?password={canaries.at('query')}",
        "REDIS_URL": f"rediss://:{canaries.at('redis')}@127.0.0.1:1/0",
        "HTTPS_PROXY": f"http://me:{canaries.at('proxy')}@proxy.example.com:3128",
        "AWS_SECRET_ACCESS_KEY": canaries.at("cloud"),
        "TRAINMASTER_URL": service.url,
        "TRAINMASTER_API_KEY": ADMIN_KEY,
        "TRAINMASTER_KEEP_JOBS": "60d",
        "TRAINMASTER_CONFIG": str(folder / "config.yaml"),
        "TRAINMASTER_DATA": str(folder / "data"),
    }


def log_lines(canaries: Canaries) -> str:
    known, secret = canaries.at("database"), canaries.at
    return "\n".join(
        (
            '{"level":"info","message":"serving","port":8470}',
            f"connecting to postgresql://user:{known}@db.example.com/tm",
            f"connecting to postgresql://other:{secret('url of a log')}@db.example.com/tm",
            f"Authorization: Bearer {secret('bearer')}",
            f"key tmk_{secret('key of a log')} was refused",
            f'{{"message":"sent","password":"{secret("json")}","apiKey": "{secret("json key")}"}}',
            f"{{'client_secret': '{secret('dict')}'}} --password={secret('option')} token: {secret('colon')}",
            f'{{"message":"spec {{\\"password\\": \\"{secret("json in json")}\\"}}"}}',
            f'{{"env": {{"ANY": "{secret("environment of a member")}"}}}}',
            f"-----BEGIN PRIVATE KEY-----\n{secret('pem')}\n-----END PRIVATE KEY-----",
            "the last line",
        )
    )


async def test_no_secret_is_in_it_wherever_it_was(service: Service, tmp_path: Path) -> None:
    canaries = Canaries()
    data = tmp_path / "data"
    (data / "logs").mkdir(parents=True)
    (data / "keys").mkdir()
    (data / "agents" / "private").mkdir(parents=True)
    (data / "keys" / "admin").write_text(canaries.at("key of a file"))
    (tmp_path / "config.yaml").write_text(f"url: http://127.0.0.1:1\nkey: {canaries.at('configuration')}\n")
    (data / "agents" / "private" / "output.log").write_text(canaries.at("member's output"))
    more = f"the api has {canaries.at('key of a file')} and {canaries.at('configuration')}\n"
    (data / "logs" / "api.log").write_text(more + log_lines(canaries))
    spec = job(queue="default")
    spec["roles"][0]["template"]["env"] = {"PASSWORD": canaries.at("env of a job")}
    assert (await service.http.post("/v1/jobs", json=spec)).status_code == 201
    env = environment(service, tmp_path, canaries)
    ended = await call("--out", tmp_path / "bundle.tar.gz", env=env)
    assert ended.returncode == 0, ended.stderr
    parts = unpacked(tmp_path / "bundle.tar.gz")
    whole = "".join(parts.values()) + ended.stdout + ended.stderr
    assert {place: secret for place, secret in canaries.all.items() if secret in whole} == {}
    assert ADMIN_KEY not in whole
    assert len(canaries.all) > 80
    manifest = json.loads(parts["manifest.json"])
    assert manifest["parts"].keys() == parts.keys() - {"manifest.json"}
    assert parts.keys() >= {
        "versions.json",
        "settings.json",
        "doctor.json",
        "clusters.json",
        "queues.json",
        "audit.json",
    }
    assert {"metrics.txt", "logs/api.log"} <= parts.keys()
    assert parts["logs/api.log"].endswith("the last line")
    assert '"port":8470' in parts["logs/api.log"]
    settings = json.loads(parts["settings.json"])
    assert (settings["TRAINMASTER_KEEP_JOBS"], settings["DATABASE_URL"]) == ("60d", "(set)")
    assert {cluster["name"] for cluster in json.loads(parts["clusters.json"])} == {"edge", "private", "public"}
    assert any(entry["action"] == "submit" for entry in json.loads(parts["audit.json"]))
    assert "trainmaster_" in parts["metrics.txt"]
    assert (tmp_path / "bundle.tar.gz").stat().st_mode & 0o777 == 0o600


async def test_without_an_api_it_has_the_rest_and_says_what_is_missing(service: Service, tmp_path: Path) -> None:
    env = environment(service, tmp_path, Canaries()) | {"TRAINMASTER_URL": "http://127.0.0.1:9"}
    ended = await call("--out", tmp_path / "none.tar.gz", env=env)
    missing = json.loads(unpacked(tmp_path / "none.tar.gz")["manifest.json"])["missing"]
    assert missing["logs"].startswith(f"there are none in {tmp_path / 'data' / 'logs'}; --data names the folder")
    assert "without logs: there are none in" in ended.stderr
    (tmp_path / "data" / "logs").mkdir(parents=True)
    line = "a line of a long log\n"
    (tmp_path / "data" / "logs" / "api.log").write_text(line * 40_000)
    ended = await call("--out", tmp_path / "bundle.tar.gz", env=env)
    assert ended.returncode == 0, ended.stderr
    parts = unpacked(tmp_path / "bundle.tar.gz")
    assert "clusters.json" in json.loads(parts["manifest.json"])["missing"]
    assert 200 * 1024 < len(parts["logs/api.log"]) <= 256 * 1024
    assert parts["logs/api.log"].startswith(line), "from the begin of a line"
    again = await call("--out", tmp_path / "bundle.tar.gz", env=env)
    assert again.returncode == Exit.USAGE
    assert "File exists" in again.stderr


@pytest.mark.parametrize("text", ["port 8470 is used", '{"state": "ready", "queue": "research/nlp"}', "sent in 3 s"])
def test_what_is_no_secret_is_left_as_it_is(text: str) -> None:
    assert masked(text, {"abcdefgh"}) == text


def test_a_known_secret_is_masked_as_it_stands_in_addresses() -> None:
    assert masked("a%2Fb%40cdef and a/b@cdef", {"a/b@cdef"}) == f"{MASK} and {MASK}"


@pytest.mark.parametrize(("value", "shown"), [("60d", "60d"), ("true", "true"), ("0.5", "0.5"), ("hunter2", "(set)")])
def test_settings_show_numbers_and_switches_alone(value: str, shown: str) -> None:
    assert masked_setting(value) == shown
