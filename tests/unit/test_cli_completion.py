"""Completion in shells, by the protocol that the scripts of the shells speak."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.unit.scripted import JOB, job

ANSWERS: dict[str, Any] = {
    "/v1/jobs": {"jobs": [job("running"), job("failed") | {"id": "other-0000001"}], "next": None},
    "/v1/queues": {"queues": [{"path": "lab", "isLeaf": False}, {"path": "lab/vision", "isLeaf": True}]},
    "/v1/clusters": {"clusters": [{"name": "west", "state": "ready"}, {"name": "edge", "state": "ready"}]},
    "/v1/priority-classes": {"priorityClasses": [{"name": "high", "value": 1}]},
    "/v1/burst-policies": {"burstPolicies": [{"name": "overflow"}]},
    "/v1/keys": {"keys": [{"id": 7, "name": "a", "role": "user", "createdAt": "2026-01-01T00:00:00Z"}]},
}


class Dispatcher(BaseHTTPRequestHandler):
    """Answers lists."""

    def do_GET(self) -> None:
        body = orjson.dumps(ANSWERS[self.path.partition("?")[0]])
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Dispatcher)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def completed(line: str, folder: Path, **variables: str) -> list[str]:
    """Return what bash is told for a line whose last word is to be completed; stderr stays empty."""
    words = line.split(" ")
    variables |= {"_TRAINMASTER_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    env = {name: value for name, value in os.environ.items() if not name.startswith("TRAINMASTER_")} | variables
    code = "import sys; sys.argv[0] = 'trainmaster'; from trainmaster.cli.start import main; main()"
    env["TRAINMASTER_CONFIG"] = str(folder / "config.yaml")
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("trainmaster job ber", [JOB]),
        ("trainmaster cancel ", [JOB, "other-0000001"]),
        ("trainmaster jobs --queue lab", ["lab", "lab/vision"]),
        ("trainmaster run --queue ", ["lab/vision"]),
        ("trainmaster jobs --cluster w", ["west"]),
        ("trainmaster run --kind p", ["private", "public"]),
        ("trainmaster run --priority-class h", ["high"]),
        ("trainmaster jobs --state run", ["running"]),
        ("trainmaster clusters drain e", ["edge"]),
        ("trainmaster burst pause o", ["overflow"]),
        ("trainmaster keys revoke ", ["7"]),
        ("trainmaster contexts use p", ["prod"]),
        ("trainmaster --context p", ["prod"]),
        ("trainmaster rer", ["rerun"]),
    ],
)
def test_words_are_completed(address: str, tmp_path: Path, line: str, words: list[str]) -> None:
    (tmp_path / "config.yaml").write_text(f"current: prod\ncontexts: {{prod: {{url: '{address}', key: tmk_x}}}}\n")
    assert completed(line, tmp_path) == words


@pytest.mark.parametrize("variables", [{}, {"TRAINMASTER_URL": "http://127.0.0.1:1", "TRAINMASTER_API_KEY": "k"}])
def test_a_dispatcher_that_does_not_answer_is_not_mentioned(tmp_path: Path, variables: dict[str, str]) -> None:
    assert completed("trainmaster job ", tmp_path, **variables) == []
