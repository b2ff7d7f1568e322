"""Wrong input as people write it, by REST, YAML files, tables and parameters of addresses: refused with its place, or rightly taken.

No answer has a word of Python or its libraries, none is a 5xx, no command ends with a stack trace, and what is refused changes
nothing. Good documents are those of the examples, of the pages on specifications, and one with each field of every kind.
With ``TRAINMASTER_DEEP=1`` more than 1,000 inputs.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml
from typer.testing import CliRunner

from tests.conftest import ADMIN_KEY, Service, job
from tests.forbidden_words import forbidden
from tests.fuzz.test_api import JOBS, OBJECTS
from tests.fuzz.values import IS_DEEP
from tests.fuzz.wrong import JSON, TABLES, YAML, wrong_texts, wrong_values
from tests.integration.rows import rows
from trainmaster.cli.main import app
from trainmaster.protocol.resource_kinds import KINDS
from trainmaster.protocol.states import Exit
from trainmaster_dispatcher.services import declared_kinds

ROOT = Path(__file__).resolve().parents[2]
FACTOR = 10 if IS_DEEP else 1
REST_VALUES, REST_TEXTS, FILES, CSV, ADDRESSES = (count * FACTOR for count in (60, 20, 25, 13, 20))
_DECLARED = [kind.table.table for kind in declared_kinds.KINDS]
_KEPT = ["jobs", "job_specs", "api_keys", "simulations", *_DECLARED]
_PLACED = re.compile(r"\bline \d+|\bcolumn \d+|document \d+: ")
_CODES = (Exit.SUCCEEDED, Exit.USAGE, Exit.BAD_REQUEST, Exit.NOT_FOUND, Exit.CONFLICT)


def _documents() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the specifications of the examples and of the pages, by where they stand."""
    for path in sorted(ROOT.glob("examples/**/*.yaml")):
        text = re.sub(r"@[A-Z_]+@", "x", path.read_text())
        for number, document in enumerate(yaml.safe_load_all(text)):
            if isinstance(document, dict) and "kind" in document:
                yield f"{path.relative_to(ROOT)} {number}", document
    for name in ("job", "queues", "prices", "burst-policies", "data"):
        page = (ROOT / f"docs/reference/{name}.md").read_text()
        for number, text in enumerate(re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)):
            for document in yaml.safe_load_all(text):
                if isinstance(document, dict) and (document.get("kind") == "Job" or document.get("kind") in KINDS):
                    yield f"{name}.md {number}", document


WRITTEN = {name: json.loads(json.dumps(document, default=str)) for name, document in _documents()}
KIND_OF = {kind.address: kind.kind for kind in KINDS.values()}
DECLARED = {
    name: body | {"kind": KIND_OF[address]}
    for name, (path, body) in OBJECTS.items()
    if (address := path.rpartition("/")[0]) in KIND_OF
}
GOOD: dict[str, dict[str, Any]] = (
    {name: {"kind": "Job", **document} for name, document in JOBS.items() if "roles" in document} | DECLARED | WRITTEN
)


@dataclass
class Findings:
    """The outcomes of the inputs of a class, and those that are wrong."""

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def note(self, what: str, text: str, outcome: str, *mistakes: str) -> None:
        self.outcomes[outcome] += 1
        word = forbidden(text)
        found = [*mistakes, *([f"has the word {word!r}"] if word else [])]
        found += ["has a stack trace"] if "Traceback" in text or "TRAINMASTER_DEBUG" in text else []
        self.wrong += [f"{what}: {one}: {text[:600]}" for one in found]

    def check(self, name: str, least: int) -> None:
        print(f"{name}: {dict(self.outcomes)}")
        assert not self.wrong, f"{len(self.wrong)} of {self.outcomes.total()}\n" + "\n".join(self.wrong[:20])
        assert self.outcomes.total() >= least
        assert self.outcomes["refused with its place"] > 0


async def _stored(service: Service) -> list[Any]:
    """Return what is stored of each kind of object: its number, and the contents of what is declared."""
    counts = " UNION ALL ".join(f"SELECT '{name}', count(*)::text FROM {name}" for name in _KEPT)
    specs = " UNION ALL ".join(
        f"SELECT '{name} spec', md5(coalesce(string_agg(spec::text, ' ' ORDER BY id), '')) FROM {name}"
        for name in _DECLARED
    )
    return [tuple(row) for row in await rows(service.stores, f"{counts} UNION ALL {specs}")]


@pytest.fixture
async def target(service: Service) -> Service:
    for path in ("fuzz", "research", "research/vision"):
        assert (await service.http.put(f"/v1/queues/{path}", json={"path": path})).status_code == 201
    return service


def _address(document: Any) -> tuple[str, str]:
    """Return the call by which a document is sent."""
    kind = next(
        (one for one in KINDS.values() if isinstance(document, dict) and document.get("kind") == one.kind), None
    )
    name = document.get(kind.key) if kind else None
    if kind is None or not isinstance(name, str) or not name:
        return "POST", "/v1/jobs"
    return "PUT", f"{kind.address}/{quote(name)}"


async def _send(service: Service, found: Findings, what: str, method: str, path: str, **more: Any) -> None:
    before = await _stored(service)
    answer = await service.http.request(method, path, **more)
    while answer.status_code == 429:
        await asyncio.sleep(float(answer.headers.get("retry-after", 1)))
        answer = await service.http.request(method, path, **more)
    if answer.status_code < 400:
        found.note(what, answer.text if "warnings" in answer.text else "", "accepted")
        return
    mistakes = []
    if answer.status_code >= 500:
        mistakes.append(f"is answered with {answer.status_code}")
    if await _stored(service) != before:
        mistakes.append("changed something although it was refused")
    problem = answer.json()
    places = [one["path"] for one in problem.get("mistakes", ())]
    is_placed = any(places) or _PLACED.search(problem["detail"]) is not None
    said = "\n".join([problem["detail"], *(f"{one['path']}: {one['message']}" for one in problem.get("mistakes", ()))])
    if problem["code"] == "invalid-spec" and not problem.get("mistakes") and "the body names" not in problem["detail"]:
        mistakes.append("names no place")
    found.note(what, said, "refused with its place" if is_placed else f"refused: {problem['code']}", *mistakes)


async def test_wrong_bodies(target: Service) -> None:
    found = Findings()
    for what, document in wrong_values(GOOD, REST_VALUES, 1):
        method, path = _address(document)
        await _send(target, found, f"{what}: {document!r:.500}", method, path, json=document)
    for wrong in wrong_texts(GOOD, REST_TEXTS, 2, JSON, json.dumps):
        method, path = _address(GOOD[wrong.what.partition(": ")[2]])
        await _send(target, found, f"{wrong.what}: {wrong.data[:300]!r}", method, path, content=wrong.data)
    found.check("bodies", REST_VALUES + REST_TEXTS)


async def _run(service: Service, found: Findings, what: str, *words: str) -> None:
    before = await _stored(service)
    env = {"TRAINMASTER_URL": service.url, "TRAINMASTER_API_KEY": ADMIN_KEY, "NO_COLOR": "1"}
    done = await asyncio.to_thread(CliRunner().invoke, app, list(words), env=env)
    if done.exit_code == Exit.SUCCEEDED:
        found.note(what, done.stderr, "accepted")
        return
    mistakes = [] if done.exit_code in _CODES else [f"ends with {done.exit_code}"]
    if await _stored(service) != before:
        mistakes.append("changed something although it was refused")
    is_placed = _PLACED.search(done.stderr) is not None or re.search(r"^  \S", done.stderr, re.MULTILINE) is not None
    if not done.stderr.startswith(("error: ", "Usage: ")):
        mistakes.append("says nothing of a mistake")
    found.note(what, done.stderr, "refused with its place" if is_placed else "refused as a whole", *mistakes)


async def test_wrong_files(target: Service, tmp_path: Path) -> None:
    found = Findings()
    texts = wrong_texts(GOOD, FILES, 3, YAML, lambda document: yaml.safe_dump(document, sort_keys=False))
    cases = [(wrong.what, wrong.data) for wrong in texts]
    cases += [
        (what, yaml.safe_dump(document, sort_keys=False).encode()) for what, document in wrong_values(GOOD, FILES, 4)
    ]
    for what, data in cases:
        file = tmp_path / "file.yaml"
        file.write_bytes(data)
        is_job = b"kind: Job" in data
        words = ["submit", "--queue", "fuzz", str(file)] if is_job else ["apply", "-y", "--dry-run", "-f", str(file)]
        await _run(target, found, f"{what}: {data[:300]!r}", *words)
    found.check("files", 2 * FILES)


async def test_wrong_tables(target: Service, tmp_path: Path) -> None:
    found = Findings()
    spec = job("sweep", "fuzz") | {"roles": [{"name": "main", "template": {"command": ["x", "${lr}", "${seed}"]}}]}
    (tmp_path / "job.json").write_text(json.dumps(spec))
    table = {"table": {"text": "lr,seed\n0.1,1\n0.2,2\n"}}
    for wrong in wrong_texts(table, CSV, 5, TABLES, lambda one: str(one["text"])):
        file = tmp_path / "table.csv"
        file.write_bytes(wrong.data)
        await _run(
            target,
            found,
            f"{wrong.what}: {wrong.data!r}",
            "submit",
            str(tmp_path / "job.json"),
            "--parameters",
            str(file),
        )
    await _run(
        target, found, "no file", "submit", str(tmp_path / "job.json"), "--parameters", str(tmp_path / "gone.csv")
    )
    found.check("tables", CSV)


QUERIES = (
    "/v1/jobs?state=runing",
    "/v1/jobs?states=running",
    "/v1/jobs?limit=ten",
    "/v1/jobs?limit=0",
    "/v1/jobs?limit=1&limit=2",
    "/v1/jobs?limit=1.5",
    "/v1/jobs?label=team",
    "/v1/jobs?queue=A%20B",
    "/v1/jobs?priority_class=normal",
    "/v1/jobs?priorityClass=Normal",
    "/v1/jobs?cursor=x",
    "/v1/jobs?cluster=A",
    "/v1/audit?limit=-1",
    "/v1/audit?actor=alice&when=now",
    "/v1/usage?begin=yesterday&end=today",
    "/v1/usage?begin=2026-11-01T00:00:00&end=2026-11-02",
    "/v1/queues?usage=maybe",
    "/v1/simulations?limit=many",
    "/v1/clusters?x=1",
    "/v1/keys?role=king",
)


async def test_wrong_addresses(target: Service) -> None:
    found = Findings()
    headers: tuple[dict[str, str], ...] = (
        {},
        {"Idempotency-Key": ""},
        {"If-Match": "x"},
        {"Accept": "text/nonsense"},
        {"Content-Type": "text/csv"},
    )
    for number in range(ADDRESSES):
        path = QUERIES[number % len(QUERIES)]
        header = headers[number // len(QUERIES) % len(headers)]
        await _send(target, found, f"{path} {header}", "GET", path, headers=header)
    found.check("addresses", ADDRESSES)
