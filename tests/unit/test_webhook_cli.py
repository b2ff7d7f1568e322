"""The command line: webhook messages that were given up."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.unit.fake_api import Api, connected, run
from tests.unit.scripted import JOB
from trainmaster.protocol.states import Exit


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Api:
    return connected(monkeypatch, tmp_path)


def letter(number: int, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "job": JOB,
        "queue": "q",
        "seq": 5,
        "hook": 0,
        "url": "https://hooks.example/",
        "states": ["running", "failed"],
        "attempts": 12,
        "error": "hooks.example answered 500",
        "createdAt": "2026-01-01T00:00:00Z",
        "deadAt": "2026-01-01T01:00:00Z",
    } | more


def two_pages(request: httpx.Request) -> httpx.Response:
    if request.url.params.get("cursor") == "more":
        return httpx.Response(200, json={"dead": [letter(7)], "next": None})
    return httpx.Response(200, json={"dead": [letter(9), letter(8)], "next": "more"})


def test_messages_are_listed_as_a_table_and_as_data(api: Api) -> None:
    api.on("GET /v1/webhooks/dead", two_pages)
    table = run("webhooks", "-o", "wide").stdout.splitlines()
    assert table[0].split()[:4] == ["ID", "ABOUT", "STATES", "ATTEMPTS"]
    assert [line.split()[0] for line in table[1:]] == ["9", "8", "7"]
    assert "running,failed" in table[1]
    assert "hooks.example answered 500" in table[1]
    assert [one["id"] for one in json.loads(run("webhooks", "--limit", "2", "-o", "json").stdout)] == [9, 8]


def test_nothing_given_up_is_said_in_words(api: Api) -> None:
    api.on("GET /v1/webhooks/dead", {"dead": [], "next": None})
    done = run("webhooks")
    assert (done.stdout, done.stderr) == ("", "no undelivered webhook message\n")
    done = run("webhooks", "drop", "--all")
    assert (done.exit_code, done.stderr) == (Exit.SUCCEEDED, "no undelivered webhook message\n")


def test_named_messages_are_tried_again_and_dropped(api: Api) -> None:
    for number in (7, 8):
        api.on(f"POST /v1/webhooks/dead/{number}/retry", letter(number))
    api.on("DELETE /v1/webhooks/dead/9", httpx.Response(204))
    assert run("webhooks", "retry", "7", "8").stdout == "7  tried again\n8  tried again\n"
    assert run("webhooks", "drop", "9").stdout == "9  dropped\n"
    assert run("webhooks", "drop", "10").exit_code == Exit.NOT_FOUND


def test_all_of_them_are_meant_only_when_said_and_agreed(api: Api) -> None:
    api.on("GET /v1/webhooks/dead", two_pages)
    for number in (7, 8, 9):
        api.on(f"DELETE /v1/webhooks/dead/{number}", httpx.Response(204))
    for words in ([], ["7", "--all"]):
        assert run("webhooks", "drop", *words).exit_code == Exit.USAGE
    refused = run("webhooks", "drop", "--all", says="n\n")
    assert "3 messages will be dropped" in refused.stderr
    assert not any(call.startswith("DELETE") for call in api.calls())
    assert run("webhooks", "drop", "--all", "--yes").stdout == "9  dropped\n8  dropped\n7  dropped\n"
