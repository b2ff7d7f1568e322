"""``TRAINMASTER_TOKEN_FILE``: a credential of a file, which is read again for each call."""

import asyncio
import json
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.unit.fake_api import run
from trainmaster.client import config, sign_in
from trainmaster.client.async_http import AsyncClient
from trainmaster.client.errors import ConfigurationError
from trainmaster.client.http import Client

URL = "https://trainmaster.test"
IDENTITY = {"id": 1, "name": "runner", "role": "user", "version": "0.1.0"}


def token(number: int) -> str:
    """Return a token that has ended, as to its claims: that says nothing about what the file has next."""
    parts = ({"alg": "RS256"}, {"iss": "https://k8s.test", "sub": "runner", "iat": 1, "exp": 2, "jti": number})
    return ".".join([*(urlsafe_b64encode(json.dumps(one).encode()).decode().rstrip("=") for one in parts), "x"])


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("TRAINMASTER_API_KEY", "TRAINMASTER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "token"
    monkeypatch.setenv("TRAINMASTER_URL", URL)
    monkeypatch.setenv("TRAINMASTER_CONFIG", str(tmp_path / "config.yaml"))
    monkeypatch.setenv("TRAINMASTER_TOKEN_FILE", str(path))
    path.write_text(f"{token(1)}\n")
    return path


class Heard:
    """An api that notes the credential of each call."""

    def __init__(self) -> None:
        self.credentials: list[str] = []

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.credentials.append(request.headers["authorization"].removeprefix("Bearer "))
        return httpx.Response(200, json=IDENTITY)


def test_each_call_has_what_the_file_has_then(file: Path) -> None:
    heard = Heard()
    with Client(transport=httpx.MockTransport(heard.answer)) as client:
        for number in (1, 2, 2, 3):
            file.write_text(token(number))
            client.whoami()
        file.write_text("tmk_key-in-a-file")
        client.whoami()
    assert heard.credentials == [token(1), token(2), token(2), token(3), "tmk_key-in-a-file"]


def test_a_key_in_the_file_is_followed_as_well(file: Path) -> None:
    heard = Heard()
    file.write_text("tmk_first")
    with Client(transport=httpx.MockTransport(heard.answer)) as client:
        client.whoami()
        file.write_text("tmk_second")
        client.whoami()
    assert heard.credentials == ["tmk_first", "tmk_second"]
    assert sign_in.lasting("tmk_first", URL) == "tmk_second", "connections for terminals ask so"


async def test_clients_of_asyncio_follow_it(file: Path) -> None:
    heard = Heard()

    async def answer(request: httpx.Request) -> httpx.Response:
        return heard.answer(request)

    async with AsyncClient(transport=httpx.MockTransport(answer)) as client:
        await client.whoami()
        await asyncio.to_thread(file.write_text, token(2))
        await client.whoami()
    assert heard.credentials == [token(1), token(2)]


def test_a_given_key_and_a_context_come_first(file: Path) -> None:
    assert config.load().key == token(1)
    assert config.load(key="tmk_given").key == "tmk_given"
    assert config.load(key="tmk_given").token_file == ""
    config.write_contexts(config.Contexts({"fleet": config.Context(URL, "tmk_stored")}, "fleet"))
    assert config.load(context="fleet").key == "tmk_stored"
    assert config.load().key == token(1)


def test_a_key_beside_the_file_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMASTER_API_KEY", "tmk_env")
    with pytest.raises(ConfigurationError, match="both TRAINMASTER_API_KEY and TRAINMASTER_TOKEN_FILE are set"):
        config.load()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot read .*: No such file or directory"),
        (b"", "the API key is empty"),
        (b"secret secret", "its character 7 of 13 is a space"),
        (b"\xff\xfe", "it is no text of ASCII"),
    ],
)
def test_a_file_without_a_token_is_told_and_never_shown(file: Path, content: bytes | None, why: str) -> None:
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=f"TRAINMASTER_TOKEN_FILE.*{why}") as error:
        config.load()
    assert "secret" not in str(error.value)


def test_an_empty_name_is_a_mistake(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMASTER_TOKEN_FILE", " ")
    with pytest.raises(ConfigurationError, match="TRAINMASTER_TOKEN_FILE is empty"):
        config.load()


def test_kubectl_reads_the_file_itself(file: Path) -> None:
    done = run("kubeconfig")
    assert done.exit_code == 0, done.output
    assert f"tokenFile: {file}" in done.stdout
    assert token(1) not in done.stdout


def test_few_credentials_are_remembered(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "_followed", {})
    monkeypatch.setattr(config, "_MOST_FOLLOWED", 3)
    found: list[Any] = []
    for number in range(9):
        file.write_text(token(number))
        found.append(config.read_token_file(str(file)))
    assert [config.file_of(one) for one in found] == [""] * 6 + [str(file)] * 3
