"""The command line: what a user is notified of."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.unit.fake_api import Api, connected, run
from trainmaster.protocol.states import Exit

NOTICES: dict[str, Any] = {
    "address": "ada@example.com",
    "sendsEmail": True,
    "notices": {"email": True, "events": ["failed"], "minDuration": "10m"},
}


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Api:
    return connected(monkeypatch, tmp_path)


def test_what_is_set_is_shown_in_words_and_as_data(api: Api) -> None:
    api.on("GET /v1/notices", NOTICES)
    assert run("notices").stdout.splitlines() == [
        "e-mail     ada@example.com",
        "events     failed",
        "only if    a job ran for 10m or longer",
        "one by one 3 events in 10m; the rest in one message at the end",
    ]
    assert json.loads(run("notices", "-o", "json").stdout)["notices"]["events"] == ["failed"]
    api.on("GET /v1/notices", NOTICES | {"notices": None})
    assert "you are notified of nothing" in run("notices").stderr


def test_options_become_a_specification(api: Api) -> None:
    sent: list[dict[str, Any]] = []

    def answered(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        return httpx.Response(200, json=NOTICES)

    api.on("PUT /v1/notices", answered)
    words = ("--event", "failed", "--event", "cancelled", "--min-duration", "10m", "--most", "5", "--window", "1h")
    done = run("notices", "set", "--email", "--chat", "slack=https://hooks.example/x?a=b", *words)
    assert done.exit_code == Exit.SUCCEEDED, done.stderr
    assert sent == [
        {
            "email": True,
            "chat": {"url": "https://hooks.example/x?a=b", "format": "slack"},
            "events": ["failed", "cancelled"],
            "minDuration": "10m",
            "most": 5,
            "window": "1h",
        }
    ]


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ((), "needs email: true, or a chat"),
        (("--chat", "https://hooks.example/x"), "FORMAT=URL"),
        (("--chat", "irc=https://hooks.example/x"), "slack"),
        (("--email", "--window", "1x"), "--window: '1x' is not a duration"),
        (("--email", "--event", "started"), "failed"),
    ],
)
def test_mistakes_are_told_before_anything_is_sent(api: Api, words: tuple[str, ...], wrong: str) -> None:
    done = run("notices", "set", *words)
    assert done.exit_code != Exit.SUCCEEDED
    assert wrong in done.stderr


def test_notices_are_removed_and_addresses_of_keys_set(api: Api) -> None:
    api.on("DELETE /v1/notices", httpx.Response(204))
    assert run("notices", "remove").stdout == "notices  removed\n"
    api.on("POST /v1/keys/7/email", httpx.Response(204))
    assert run("keys", "email", "7", "ada@example.com").stdout == "key 7  ada@example.com\n"
    assert run("keys", "email", "7").stdout == "key 7  no address\n"
