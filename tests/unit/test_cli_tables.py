"""Tables at 80 and 120 columns, with content as long as it really is: no heading is broken, no value is lost."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.fake_api import Api, connected, run
from tests.unit.scripted import JOB, job
from trainmaster.cli import tables
from trainmaster.cli.errors import tell
from trainmaster.cli.output import print_pairs, print_sentence, print_table

LONG_JOB = "pretraining-of-llama-70b-7k2p9xq"
QUEUE = "research/language-models/pretraining-team"
MESSAGE = "member worker-17 exited with code 137: the node gpu-node-0042.example.org ran out of memory for this member"
LABELS = {"team.example.org/name": "language-models", "experiment": "learning-rate-sweep-2026-11"}
TIME = "2026-11-01T08:00:00.000Z"


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Api:
    return connected(monkeypatch, tmp_path)


def _job() -> dict[str, Any]:
    ran: dict[str, Any] = {
        "queue": QUEUE,
        "cluster": "private-frankfurt-2",
        "labels": LABELS,
        "message": MESSAGE,
        "attempt": 3,
    }
    return job("failed") | {"id": LONG_JOB, "priorityClass": "production-high", "submittedBy": "language-team"} | ran


def _run() -> dict[str, Any]:
    member = {"role": "worker", "index": 17, "state": "failed", "node": "gpu-node-0042.example.org", "exitCode": 137}
    scores = {"cluster": "private-frankfurt-2", "score": 2.5, "kind": 1.0, "sparing": 0.25, "money": 0.75, "data": 0.5}
    ran = {"id": f"{LONG_JOB}-r3", "attempt": 3, "cluster": "private-frankfurt-2", "state": "failed", "leasedAt": TIME}
    return ran | {"members": [member | {"message": MESSAGE}], "message": MESSAGE, "scores": {"table": [scores]}}


def _jobs(api: Api) -> None:
    api.on("GET /v1/jobs", {"jobs": [_job(), _job()], "next": None})


def _one_job(api: Api) -> None:
    template: dict[str, Any] = {
        "image": "registry.example.org/language/train:2026-11",
        "command": ["torchrun", "train.py"],
    }
    template |= {"args": ["--data", "/data/common-crawl"], "resources": {"cpu": "32", "nvidia.com/gpu": "8"}}
    spec = {"name": "x", "queue": QUEUE, "roles": [{"name": "worker", "replicas": 64, "template": template}]}
    api.on(f"GET /v1/jobs/{JOB}", _job() | {"id": JOB, "spec": spec, "runs": [_run()], "state": "cancelled"})


def _why(api: Api) -> None:
    verdict = {"cluster": "private-frankfurt-2", "check": "noRoom", "sentence": MESSAGE}
    reason = {
        "job": JOB,
        "state": "queued",
        "token": "InsufficientCapacity",
        "tier": "capacity",
        "sentence": "It waits.",
    }
    api.on(f"GET /v1/jobs/{JOB}/why", reason | {"verdicts": [verdict, verdict]})


def _queues(api: Api) -> None:
    quota = {"guaranteed": "128", "limit": "256", "borrowingLimit": "64", "lendingLimit": "32", "weight": 2.5}
    usage = {"running": 2, "used": {"cpu": "5000", "nvidia.com/gpu": "96"}, "share": 0.375, "shareBeyondGuarantee": 0.1}
    queue = {"path": QUEUE, "resources": {"nvidia.com/gpu@product=h100": quota, "cpu": quota}, "usage": usage}
    api.on("GET /v1/queues", {"queues": [queue | {"jobs": {"queued": 120_000, "running": 800}}]})


def _clusters(api: Api) -> None:
    capacity = {"cpu": "5120", "memory": "40Ti", "nvidia.com/gpu": "640"}
    cluster = {"name": "private-frankfurt-2", "clusterKind": "private", "state": "unreachable", "cordoned": True}
    cluster |= {"capacity": capacity, "nodes": 80, "region": "eu-central-1", "provider": "own-data-centre"}
    cluster |= {"runtime": "kubernetes", "scheduler": "volcano", "agentVersion": "0.1.0", "labels": LABELS}
    api.on("GET /v1/clusters", {"clusters": [cluster | {"liveRuns": 40, "stoppingRuns": 2, "orphanedRuns": 1}]})


def _usage(api: Api) -> None:
    row = {"since": TIME, "of": {"queue": QUEUE, "label:team.example.org/name": "language-models"}, "runs": 1234}
    row |= {"cpu": 123456.0, "memory": 1234567.0, "members": 99.5, "cost": "1234567.89"}
    row |= {"devices": {"nvidia.com/gpu": 123456.0, "example.org/fpga": 5.0}}
    api.on("GET /v1/usage", {"currency": "EUR", "begin": TIME, "end": TIME, "rows": [row, row], "total": row})


def _preview(api: Api) -> None:
    one = {"job": LONG_JOB, "jobs": 12, "queue": QUEUE, "waitedSeconds": 86_000, "policy": "overflow-to-the-cloud"}
    one |= {"goes": True, "cluster": "public-us-east-1", "pricePerHour": "1234.5", "atMost": "98765", "token": "x"}
    api.on("POST /v1/burst-policies/preview", {"currency": "EUR", "previews": [one | {"sentence": MESSAGE}]})


def _policies(api: Api) -> None:
    budgets = [{"span": span, "spent": "1234.5", "committed": "99", "limit": "2000"} for span in ("day", "month")]
    policy: dict[str, Any] = {
        "name": "overflow-to-the-cloud",
        "queues": [QUEUE, "platform/batch"],
        "when": {"after": "1h30m"},
    }
    policy |= {"atMost": {"jobs": 30}, "budget": {"day": 5}, "paused": False}
    status = {"jobs": 12, "budgets": budgets, "closed": "the day's budget is used up"}
    api.on("GET /v1/burst-policies", {"live": True, "currency": "EUR", "burstPolicies": [policy | {"status": status}]})


def _keys(api: Api) -> None:
    key = {"id": 7, "name": "language-models-pretraining-robot", "role": "user", "queues": [QUEUE, "platform/batch"]}
    key |= {"hint": "tmk_Q3vX...", "createdAt": TIME, "expiresAt": "2999-01-01T00:00:00Z", "lastUsedAt": TIME}
    api.on("GET /v1/keys", {"keys": [key]})


def _audit(api: Api) -> None:
    line = {"at": TIME, "actor": "language-models-pretraining-robot", "action": "put queue", "target": QUEUE}
    line |= {"address": "2001:db8:85a3:1234:5678:8a2e:370:7334", "requestId": "5d0c3f6a91b2e847"}
    details = {"before": {"weight": 1}, "after": {"weight": 2}}
    api.on("GET /v1/audit", {"audit": [line | {"details": details}], "next": None})


def _letters(api: Api) -> None:
    letter = {"id": 31, "job": LONG_JOB, "queue": QUEUE, "seq": 6, "hook": 0, "attempts": 12, "deadAt": TIME}
    letter |= {"url": "https://hooks.example.org/trainmaster/language-models", "states": ["running", "failed"]}
    api.on("GET /v1/webhooks/dead", {"dead": [letter | {"error": MESSAGE, "createdAt": TIME}], "next": None})


def _reservations(api: Api) -> None:
    one = {
        "kind": "Reservation",
        "name": "pretraining-in-the-night",
        "queue": QUEUE,
        "nodes": 40,
        "nodeSelector": LABELS,
    }
    one |= {
        "clusters": ["private-frankfurt-2"],
        "start": TIME,
        "end": "2999-01-01T00:00:00.000Z",
        "description": MESSAGE,
    }
    api.on("GET /v1/reservations", {"reservations": [one]})


def _classes(api: Api) -> None:
    one = {"name": "production-high", "value": 500, "default": False, "preemptible": True, "longestWait": "1h"}
    api.on("GET /v1/priority-classes", {"priorityClasses": [one | {"description": MESSAGE}]})


def _price_books(api: Api) -> None:
    prices = {"cpu": "0.034", "memory": "0.0042", "devices": {"nvidia.com/gpu": "2.5", "example.org/fpga": "1.25"}}
    api.on("GET /v1/price-books", {"priceBooks": [{"name": "cloud-us-east", "onDemand": prices, "spot": prices}]})
    names = [f"public-us-east-{number}" for number in range(8)]
    api.on("GET /v1/clusters", {"clusters": [{"name": name, "priceBook": "cloud-us-east"} for name in names]})


def _datasets(api: Api) -> None:
    one = {
        "kind": "Dataset",
        "name": "common-crawl-2026-11",
        "size": "150Ti",
        "regions": ["eu-central-1"],
        "remote": True,
    }
    api.on("GET /v1/datasets", {"datasets": [one | {"clusters": ["private-frankfurt-2", "public-us-east-1"]}]})


def _quarantined(api: Api) -> None:
    lost = {"run": f"{LONG_JOB}-r3", "state": "running", "since": TIME}
    api.on("GET /v1/clusters/west/quarantined-runs", {"runs": [lost]})


TABLES: dict[str, tuple[Callable[[Api], None], tuple[str, ...]]] = {
    "jobs": (_jobs, ()),
    f"job {JOB}": (_one_job, ()),
    f"why {JOB}": (_why, ()),
    "queues": (_queues, ("120000",)),
    "clusters": (_clusters, ("5120", "(cordoned)")),
    "usage --by queue,label:team.example.org/name --per day": (_usage, ("1,234,567.89",)),
    "burst": (_policies, ("1234.50",)),
    "burst preview": (_preview, ("98,765.00",)),
    "keys": (_keys, ("tmk_Q3vX",)),
    "audit": (_audit, ("put",)),
    "webhooks": (_letters, ()),
    "reservations": (_reservations, ()),
    "priority-classes": (_classes, ()),
    "price-books": (_price_books, ("public-us-east-7",)),
    "datasets": (_datasets, ("150Ti",)),
    "clusters quarantined west": (_quarantined, ()),
}
"""Each command that prints a table: the content, and some values of it."""


Seen = tuple[Sequence[str], Sequence[Sequence[str]], list[int] | None]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Seen]:
    """The tables that commands printed: headings, cells and widths; None for blocks."""
    found: list[Seen] = []
    widths_of = tables.column_widths

    def watched(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> list[int] | None:
        widths = widths_of(columns, rows, width)
        found.append((columns, rows, widths))
        return widths

    monkeypatch.setattr(tables, "column_widths", watched)
    return found


def squeezed(text: str) -> str:
    return re.sub(r"\s", "", text)


def check_whole(columns: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int], printed: str) -> None:
    """Check that a table has its headings in one line, and the text of each cell below its heading."""
    heading = "  ".join(f"{name:<{width}}" for name, width in zip(columns, widths, strict=True)).rstrip()
    lines = printed.splitlines()
    assert heading in lines
    below = lines[lines.index(heading) + 1 :]
    for index, width in enumerate(widths):
        begin = sum(widths[:index]) + 2 * index
        column = squeezed("".join(line[begin : begin + width] for line in below))
        assert all(squeezed(row[index]) in column for row in rows), columns[index]


@pytest.mark.parametrize("form", ["table", "wide"])
@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("command", TABLES)
def test_a_table_keeps_headings_and_values(
    api: Api, monkeypatch: pytest.MonkeyPatch, seen: list[Seen], command: str, width: int, form: str
) -> None:
    fill, values = TABLES[command]
    fill(api)
    monkeypatch.setattr(tables, "terminal_width", lambda file=None: width)
    done = run(*command.split(), "-o", form)
    assert done.exit_code == 0, done.stderr
    assert all(value in done.stdout for value in values)
    assert seen, "it prints a table"
    for columns, rows, widths in seen:
        if widths is None:
            lines = {squeezed(line) for line in done.stdout.splitlines()}
            said = {
                squeezed(f"{name}:{cell}")
                for row in rows
                for name, cell in zip(columns, row, strict=True)
                if cell not in ("", "-")
            }
            assert said <= lines
        else:
            assert sum(widths) + 2 * (len(widths) - 1) <= width
            check_whole(columns, rows, widths, done.stdout)


@given(
    st.integers(40, 160).flatmap(
        lambda width: st.tuples(
            st.just(width),
            st.integers(1, 12).flatmap(
                lambda many: st.tuples(
                    st.lists(st.text("ABCDEFGH", min_size=1, max_size=12), min_size=many, max_size=many),
                    st.lists(
                        st.lists(st.text("abc/, =", max_size=60), min_size=many, max_size=many), min_size=1, max_size=4
                    ),
                )
            ),
        )
    )
)
def test_columns_are_never_narrower_than_their_headings_nor_wider_than_the_terminal(
    case: tuple[int, tuple[list[str], list[list[str]]]],
) -> None:
    width, (columns, rows) = case
    widths = tables.column_widths(columns, rows, width)
    if widths is None:
        lines = "\n".join(tables.blocks(columns, rows))
        assert all(cell.strip() in lines for row in rows for cell in row)
        return
    assert sum(widths) + 2 * (len(widths) - 1) <= width
    assert all(given >= len(name) for given, name in zip(widths, columns, strict=True))
    assert widths[0] >= max(len(row[0]) for row in rows)


def test_a_folded_table_has_every_word(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(tables, "terminal_width", lambda file=None: 80)
    print_table(["ID", "STATE", "MESSAGE"], [[LONG_JOB, "failed", MESSAGE], ["b", "running", "-"]])
    printed = capsys.readouterr().out
    assert all(word in printed for word in MESSAGE.split() if len(word) <= 24)
    assert squeezed(MESSAGE) in squeezed("".join(line[43:] for line in printed.splitlines()[1:]))
    assert max(map(len, printed.splitlines())) <= 80


def test_nothing_is_folded_where_no_terminal_is(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["ID", "MESSAGE"], [[LONG_JOB, MESSAGE * 5]])
    assert MESSAGE * 5 in capsys.readouterr().out


def test_no_colour_means_no_escape_at_all(monkeypatch: pytest.MonkeyPatch, api: Api) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    _jobs(api)
    assert "\x1b" not in run("jobs").output


@given(st.text("ab ,.-", max_size=300), st.integers(40, 120), st.integers(0, 15), st.none() | st.integers(0, 15))
def test_a_sentence_is_broken_between_words(text: str, width: int, begin: int, indent: int | None) -> None:
    lines = tables.wrapped(text, width, begin, indent).split("\n")
    assert " ".join(lines).split() == text.split()
    further = begin if indent is None else indent
    assert all(line.startswith(" " * further) for line in lines[1:])
    whole = [" " * begin + lines[0], *lines[1:]]
    assert all(len(line) <= width or " " not in line.strip() for line in whole)


def test_pairs_sentences_and_errors_fit_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tables, "terminal_width", lambda file=None: 80)
    print_pairs([("message", MESSAGE), ("where", MESSAGE * 2)])
    print_sentence(MESSAGE * 2)
    tell(MESSAGE * 2 + "\nshort")
    printed = capsys.readouterr()
    assert max(map(len, [*printed.out.splitlines(), *printed.err.splitlines()])) <= 80
    once, twice = MESSAGE.split(), (MESSAGE * 2).split()
    words = ["message", *once, "where", *twice, *twice, "error:", *twice, "short"]
    assert f"{printed.out} {printed.err}".split() == words
