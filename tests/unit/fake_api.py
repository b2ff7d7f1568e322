"""A fake of the API for tests of the command line: answers by method and path, at the client's transport."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from typer.testing import CliRunner, Result

from tests.unit.scripted import JOB, job, problem
from trainmaster.cli import config
from trainmaster.cli.main import app
from trainmaster.client.http import Client
from trainmaster.protocol.errors import Code
from trainmaster_dispatcher.cli import simulate, simulations

for module in (simulate, simulations):
    module.register(app)  # as main() does when it finds the distribution

OTHER = "other-0000001"
SPEC: dict[str, Any] = {"kind": "Job", "name": "bert", "queue": "q", "roles": [{"name": "main", "template": {}}]}
Answer = httpx.Response | Exception | Callable[[httpx.Request], httpx.Response]


class Api:
    """Answers by method and path; keeps the requests."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.requests: list[httpx.Request] = []
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def on(self, call: str, answer: Answer | dict[str, Any]) -> None:
        self.answers[call] = httpx.Response(200, json=answer) if isinstance(answer, dict) else answer

    def calls(self) -> list[str]:
        return [f"{request.method} {request.url.path}" for request in self.requests]

    def sent(self, call: str) -> Any:
        """Return the body of the last request of ``call``: method and path."""
        found = [request for request in self.requests if f"{request.method} {request.url.path}" == call]
        return json.loads(found[-1].content)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        call = f"{request.method} {request.url.path}"
        answer = self.answers.get(call) or problem(Code.NOT_FOUND, f"there is nothing at {call}")
        if isinstance(answer, Exception):
            raise answer
        if callable(answer):
            return answer(request)
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)

    def has_job(self, state: str, job_id: str = JOB, **more: Any) -> None:
        self.on(f"GET /v1/jobs/{job_id}", job(state) | {"id": job_id, "spec": SPEC} | more)


def connected(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Api:
    """Return a fake that the commands find through their configuration file."""
    for name in ("TRAINMASTER_URL", "TRAINMASTER_API_KEY", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRAINMASTER_CONFIG", str(folder / "config.yaml"))
    config.write_context("http://dispatcher.test", "tmk_x")
    fake = Api()

    def open_client(context: config.Context) -> Client:
        transport = httpx.MockTransport(fake)
        return Client(context.url, context.key, transport=transport, sleep=fake.sleep, clock=lambda: fake.now)

    monkeypatch.setattr(config, "open_client", open_client)
    return fake


def run(*words: str, says: str | None = None) -> Result:
    return CliRunner().invoke(app, list(words), input=says)


def jobs_file(folder: Path, *specs: dict[str, Any] | str) -> str:
    path = folder / "jobs.yaml"
    path.write_text("\n---\n".join(item if isinstance(item, str) else yaml.safe_dump(item) for item in specs))
    return str(path)
