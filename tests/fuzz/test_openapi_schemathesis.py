"""The OpenAPI document against the api that serves it: schemathesis makes calls of the one and checks the answers of the other.

Two keys make the same calls, an admin's and a user's. All checks of schemathesis are on but these:

* ``use_after_free``, ``ensure_resource_availability``: they follow links between operations, which the document does not declare.
  What is found after a change, and what is not, is tested in ``tests/integration``.
* ``object_level_authorization``: it needs two keys in one run. ``tests/integration/test_tenants_apart.py`` is about that alone.
* ``missing_required_header``: no header is required but the key, without which ``ignored_auth`` calls.

Two checks have exceptions, which are listed below with their reasons: a specification that follows the schema may still be refused for
what JSON Schema cannot say, and some forms beside those of the schema are read.

What the calls must not do, or could not do honestly:

* Rates are not bounded here: the bound of a key is tested in ``tests/integration/test_limits_api.py``. Calls go over one connection.
* Streams: ``follow`` of logs is sent as false, as the jobs here never end and a follower would wait for ever; ``list_events``
  streams only when asked with ``Accept: text/event-stream``, which no generated call does. Both are tested in
  ``tests/integration/test_streams.py``.
* A key does not revoke itself, nor the other one of the test.

With ``TRAINMASTER_DEEP=1`` at least 20,000 cases.
"""

import asyncio
import os
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import orjson
import pytest
import schemathesis
from schemathesis import engine
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events

from tests.conftest import ADMIN_KEY, job
from tests.fuzz.values import IS_DEEP
from trainmaster.protocol.base import ALSO
from trainmaster.protocol.resource_kinds import KINDS
from trainmaster.protocol.states import ClusterKind
from trainmaster.protocol.tenants import ClusterSpec, QueueSpec
from trainmaster_dispatcher.cli.embedded import free_port, wait_for_port
from trainmaster_dispatcher.cli.up import Child
from trainmaster_dispatcher.services.bootstrap import make_local_installation
from trainmaster_dispatcher.services.settings import Settings

EXAMPLES = 40 if IS_DEEP else 1
"""Of each operation and key, beside those of the coverage phase, which are at the bounds of each schema."""
NOT_CHECKED = (
    "use_after_free",
    "ensure_resource_availability",
    "object_level_authorization",
    "missing_required_header",
)
LEAST_CASES = 20_000 if IS_DEEP else 300
_PATIENCE = 60.0
_MOST_ENTRIES = 100
_KINDS = tuple(kind.command for kind in KINDS.values())
"""In an order in which objects can be created."""
DECLARED: dict[str, dict[str, Any]] = {
    "queues": {"path": "fuzz", "allowedKinds": [kind.value for kind in ClusterKind]},
    "priority-classes": {"name": "fuzz", "value": 5},
    "clusters": {"name": "fuzz", "clusterKind": "edge"},
    "price-books": {"name": "fuzz", "onDemand": {"cpu": "0.1"}},
    "datasets": {"name": "fuzz", "size": "1Gi"},
    "reservations": {
        "name": "fuzz",
        "queue": "fuzz",
        "nodes": 1,
        "start": "2036-11-28T00:00:00Z",
        "end": "2036-11-30T00:00:00Z",
    },
    "burst-policies": {"name": "fuzz", "queues": ["fuzz"], "budget": {"month": "100"}},
    "role-bindings": {"name": "fuzz", "groups": ["fuzz"], "role": "user", "queues": ["fuzz"]},
}
"""What calls find: one object of each kind that can be declared."""


@dataclass
class Dispatcher:
    """An api and a scheduler as processes of their own."""

    url: str
    user_key: str
    jobs: list[str]
    own_keys: list[int]

    @property
    def keys(self) -> dict[str, str]:
        return {"admin": ADMIN_KEY, "user": self.user_key}


@pytest.fixture
def dispatcher(database_url: str, redis_url: str, tmp_path: Path) -> Iterator[Dispatcher]:
    clusters = [ClusterSpec(name=kind.value, cluster_kind=kind) for kind in ClusterKind]
    queue = QueueSpec(path="default", allowed_kinds=tuple(ClusterKind))
    settings = Settings.model_validate({"database_url": database_url, "redis_url": redis_url})
    asyncio.run(make_local_installation(settings, clusters, {"admin": ADMIN_KEY}, [queue]))
    env = os.environ | {
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "TRAINMASTER_CALLS_PER_SECOND_PER_KEY": "0",
        "TRAINMASTER_WRONG_KEYS_PER_SECOND": "0",
        "TRAINMASTER_KEYLESS_CALLS_PER_SECOND": "0",
        "TRAINMASTER_WEBHOOK_SECRET": "whsec_" + "a" * 40,
        "TRAINMASTER_FILES_STORE": f"file://{tmp_path}/files",
        "TRAINMASTER_FILES_BYTES": str(2**62),
        "TRAINMASTER_FILES_BYTES_PER_QUEUE": "0",
    }
    port = free_port()
    program = [sys.executable, "-m", "trainmaster.cli.main"]
    children = [
        Child("api", [*program, "serve", "--port", str(port)], env, tmp_path / "api.log"),
        Child("scheduler", [*program, "scheduler"], env, tmp_path / "scheduler.log"),
    ]
    try:
        for child in children:
            child.start()
        assert children[0].process is not None
        wait_for_port(port, children[0].process, _PATIENCE, "the api")
        yield _with_objects(f"http://127.0.0.1:{port}")
        for child in children:
            assert child.process is not None
            assert child.process.poll() is None, child.log.read_text()[-5_000:]
    finally:
        for child in children:
            child.stop()


def _with_objects(url: str) -> Dispatcher:
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {ADMIN_KEY}"}, timeout=60) as http:

        def call(method: str, path: str, body: object) -> Any:
            answer = http.request(method, path, json=body)
            assert answer.status_code < 300, answer.text
            return answer.json()

        for kind in _KINDS:
            name = DECLARED[kind].get("path") or DECLARED[kind]["name"]
            call("PUT", f"/v1/{kind}/{name}", DECLARED[kind])
        key = call("POST", "/v1/keys", {"name": "user", "role": "user", "queues": ["default", "fuzz"]})["key"]
        made = call(
            "POST", "/v1/jobs", {"jobs": [job(queue="fuzz"), job(queue="fuzz", suspend=True), job(queue="fuzz")]}
        )
        jobs = [one["id"] for one in made["jobs"]]
        call("POST", f"/v1/jobs/{jobs[2]}/cancel", {})
        own_keys = [one["id"] for one in call("GET", "/v1/keys", None)["keys"]]
    return Dispatcher(url, key, jobs, own_keys)


# -- what the schema cannot say

_OF_THE_INSTALLATION = {
    "bad-cursor",
    "devices-not-counted",
    "idempotency-key-reused",
    "mail-off",
    "not-a-leaf",
    "pod-template-refused",
    "precondition-failed",
    "queue-not-a-leaf",
    "unknown-files",
    "unknown-cluster",
    "unknown-price-book",
    "unknown-priority-class",
    "unknown-queue",
    "upload-mismatch",
}
"""Codes of refusals that depend on what there is, or on a text that only the api can have made."""
_BEYOND_SCHEMA = re.compile(
    "|".join(
        (
            # Names of things that have to exist, and that the fuzzed calls do not know.
            r"there is no (time zone|queue|cluster|priority class|agent|field|dataset)",
            r"does not exist",
            # Paths of files of jobs, and what files do not go with.
            r"no path inside of the member's folder",
            r"two outputs have the name|inputs and outputs|outputs cannot be combined",
            # A patch may have any field; what it makes of the object is checked as a whole.
            r"after the patch: ",
            r"no run id|is not a run id",
            # Durations and quantities are texts: their values have bounds that no pattern can tell.
            r"is longer than ten years",
            r"at most (10m|1h|4h|30d)",
            r"must be (1s to 1d|above 0)",
            r"is at least 10?s",
            r"has a letter in it and no",
            r"is too large for a quantity",
            r"is more than 0s and at most 10m",
            r"must be (at least|at most|more than|less than) ",
            # Of a list that may be left out, but not be empty; of a time that has passed.
            r"must name at least one of|has passed",
            # The name in the address, in calls made of the document's examples, which ``map_case`` does not see.
            r"the body names .*, the address",
            # Steps of workflows, and what their jobs may say.
            r"there is no step|two steps have the name|cannot wait for itself|wait for each other|cleanup step",
            r"starts after all others",
            r"is no result of a step|does not end before|is an element of forEach|is that of the step|is the step's",
            r"must be Job, not|without apiVersion|for a workflow",
            # Fields that have to go together.
            r"exactly one of",
            r"have the same name",
            r"is more than",
            r"end must be later than (start|begin)",
            r"end must not be before begin",
            r"until has to be later than since|must be after startAfter",
            r"until must not be higher than above",
            r"elastic (needs|goes by|cannot)",
            r"is no path in the member's file system|as a part, ':' or '//'|ends with '/'|where the agent puts the list",
            r"have the path|the file .* cannot be in the volume|secretEnv has|bytes together|subPath is a path inside",
            r"sharedMemory is part of|scratch (is on|and sharedMemory)",
            r"there is no job|no job that you may see|cannot wait for itself|wait for each other|queue goes with labels",
            r"there is no group|a group has no moment|group: true reports|give the job a group|closeGroup is for",
            r"is not a moment|is not between the years",
            r"a role of an elastic job keeps",
            r"success\.role|the role that success waits for",
            r"operator \w+ (needs|takes)",
            r"gpu is a part of one|resource must be that of a device",
            r"topology\.exclusive (gives|cannot)",
            r"sharedBy|members that share a claim have one node",
            r"give onDemand, spot or both|amount has to be above 0|price of a node is divided",
            r"a budget needs at least one of",
            r"needs at least one name in|only the role \w+ has",
            r"choose: order needs",
            r"give at least one of .* a weight above 0",
            r"cases or sweep, not both",
            r"the filter is empty",
            r"key (has|needs)|only an agent's key|a key for the role|is for no queues|keys that may submit",
            r"is given twice",
            r"no command, argument or environment value has",
            r"must have exactly the parameters",
            # Of a parameter of the address and the body together.
            # A reserved beginning of names.
            r"names that begin with TRAINMASTER_",
            # Of what admins have declared, or of settings.
            r"notify\[\d+\]\.(url|chat\.url|email\[\d+\]): |^chat\.url: ",  # where messages may go
            r"exactly one of url, email and chat|needs email: true, or a chat|there is no address of yours",
            r"must be at least 1m and at most 1d",
            r"a burst policy is for public clusters",
            r"usage is not counted by the label",
            r"^(metric|by|cluster|queue|product|policy|depth|step|since|until): ",  # of series: what a metric has
            # What a cron expression and its fields mean; the job of a schedule or a step, and metadata of a manifest, which are
            # documents.
            r"(^|\.)schedule: (minute|hour|day of month|month|day of week|is never due|must have 5)",
            r"^(steps\[\d+\]\.)?job(\.|:)|^spec\.jobTemplate|^metadata",
            # Documents inside a specification, which are those of `trainmaster apply`.
            r"documents|fleet|workload",
        )
    )
)
"""What refusals of requests say that follow the schema."""


def _is_beyond_schema(answer: bytes) -> bool:
    """Return whether a request was refused for what its schema cannot say."""
    problem = orjson.loads(answer)
    if problem["code"] in _OF_THE_INSTALLATION:
        return True
    messages = [f"{one['path']}: {one['message']}" for one in problem.get("mistakes", ())] or [problem["detail"]]
    return all(_BEYOND_SCHEMA.search(one) for one in messages)


_FLAG = {
    "enum": [
        0,
        1,
        *(
            word
            for one in ("0", "1", "t", "f", "true", "false", "y", "n", "yes", "no", "on", "off")
            for word in (one, one.upper(), one.title())
        ),
    ]
}
_NUMBER = {"type": "string", "pattern": r"^\s*[+-]?[0-9._]+([eE][+-]?[0-9]+)?\s*$"}


def as_read(schema: Any, *, in_address: bool = False) -> Any:
    """Return a schema of all forms that are read: beside the one that it describes, those of ``x-also-accepts``. Of parameters, which
    are texts, also numbers and flags as texts, and a flag as 0 or 1."""
    if isinstance(schema, list):
        return [as_read(one, in_address=in_address) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: as_read(value, in_address=in_address) for key, value in schema.items()}
    numbers = [_NUMBER, {"type": "boolean"}]
    others: dict[Any, list[Any]] = {"boolean": [_FLAG], "integer": numbers, "number": numbers}
    kind = schema.get("type")
    also = list(others.get(kind, ())) if in_address and isinstance(kind, str) else []
    if ALSO in schema:
        also += [schema[ALSO], _NUMBER]
    return {"anyOf": [made, *also]} if also else made


class _Reader:
    """Tells which requests of a document are read by the api."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._paths = document["paths"]
        self._components = as_read(document["components"]["schemas"])

    def is_read(self, case: Any) -> bool:
        """Return whether a call gives nothing but forms that are read."""
        operation = self._paths[case.path][case.method.lower()]
        if "requestBody" in operation:
            content = operation["requestBody"]["content"]["application/json"]["schema"]
            body = getattr(case, "body", None)
            if isinstance(body, dict | list | str | int | float | bool | None) and not self._fits(content, body):
                return False
        given = {"query": case.query or {}, "header": case.headers or {}, "path": case.path_parameters or {}}
        for parameter in operation.get("parameters", ()):
            values = given[parameter["in"]]
            name = parameter["name"]
            if name in values and not self._fits(parameter["schema"], values[name], in_address=True):
                return False
        return True

    def has_headers_of_the_schema(self, case: Any) -> bool:
        """Return whether the headers follow their schemas: the coverage phase makes some, such as 0, that do not."""
        return all(
            jsonschema.Draft202012Validator(one["schema"]).is_valid(case.headers[one["name"]])
            for one in self._paths[case.path][case.method.lower()].get("parameters", ())
            if one["in"] == "header" and one["name"] in (case.headers or {})
        )

    def _fits(self, schema: Any, value: Any, *, in_address: bool = False) -> bool:
        whole = {**as_read(schema, in_address=in_address), "components": {"schemas": self._components}}
        return bool(jsonschema.Draft202012Validator(whole).is_valid(value))


# -- the calls


@dataclass
class Findings:
    """What the calls with one key found."""

    cases: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    operations: set[str] = field(default_factory=set)
    succeeded: set[str] = field(default_factory=set)
    """Operations that were done at least once."""
    excepted: Counter[str] = field(default_factory=Counter)
    """Failures that are no mistakes, by check."""
    mistakes: dict[str, str] = field(default_factory=dict)

    def summary(self) -> str:
        done = f"{len(self.succeeded)} of {len(self.operations)} operations were done"
        excepted = ", ".join(f"{count} {name}" for name, count in sorted(self.excepted.items()))
        statuses = ", ".join(f"{count} times {status}" for status, count in sorted(self.statuses.items()))
        return f"{self.cases} cases, {done}; answers: {statuses}; excepted: {excepted}; checks: {dict(self.checks)}"


def configuration(url: str, key: str) -> SchemathesisConfig:
    return SchemathesisConfig.from_dict(
        {
            "continue-on-failure": True,
            "seed": random.randrange(2**32) if IS_DEEP else 1,
            "base-url": url,
            "request-timeout": 60,
            "headers": {"Authorization": f"Bearer {key}"},
            "generation": {
                "max-examples": EXAMPLES,
                "no-shrink": True,
                "allow-x00": False,  # no text may hold U+0000, as the document says in its head
            },
            "phases": {"stateful": {"enabled": False}, "coverage": {"enabled": IS_DEEP}},
            "checks": {name: {"enabled": False} for name in NOT_CHECKED},
        }
    )


def without_large_bounds(schema: Any) -> Any:
    """Return a schema without bounds on numbers of entries above 100, at which the coverage phase would call with megabytes.

    Bodies of that size are in ``tests/fuzz/test_api.py`` and ``tests/integration/test_group_commit.py``.
    """
    if isinstance(schema, list):
        return [without_large_bounds(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: without_large_bounds(value)
        for key, value in schema.items()
        if not (key in ("maxItems", "maxProperties") and value > _MOST_ENTRIES)
    }


def run(dispatcher: Dispatcher, key: str) -> Findings:
    """Let schemathesis call every operation with a key."""
    document = httpx.get(f"{dispatcher.url}/openapi.json").raise_for_status().json()
    del document["paths"]["/v1/changes"]  # a stream that does not end
    schema = schemathesis.openapi.from_dict(without_large_bounds(document), config=configuration(dispatcher.url, key))
    reader = _Reader(document)
    found = Findings()

    @schema.hook
    def filter_case(context: Any, case: Any) -> bool:
        """Leave out calls that would revoke a key of this test."""
        return case.path != "/v1/keys/{key_id}" or case.path_parameters.get("key_id") not in dispatcher.own_keys

    @schema.hook
    def map_case(context: Any, case: Any) -> Any:
        """Let the body of a declared object name the object of the address, which no schema can say, and let logs end."""
        name = next((one for one in ("name", "path") if one in (case.path_parameters or {})), None)
        if name is not None and isinstance(case.body, dict) and name in case.body:
            case.body = case.body | {name: case.path_parameters[name]}
        if case.query and "follow" in case.query:
            case.query = case.query | {"follow": "false"}
        return case

    @schema.hook
    def filter_failure(context: Any, failure: Any, case: Any, response: Any) -> bool:
        kind = type(failure).__name__
        if kind == "RejectedPositiveData":
            is_mistake = reader.has_headers_of_the_schema(case) and not _is_beyond_schema(response.content)
        elif kind == "AcceptedNegativeData":
            is_mistake = not reader.is_read(case)
        elif kind in ("AllowHeaderMismatch", "UnsupportedMethodResponse"):
            # The path of a queue may end with "rotate": then GET shows its secrets.
            is_mistake = case.path != "/v1/webhooks/secrets/{path}/rotate"
        else:
            return True
        found.excepted[kind] += not is_mistake
        return is_mistake

    for event in engine.from_schema(schema).execute():
        if isinstance(event, events.ScenarioFinished):
            _note(found, event.recorder)
        elif isinstance(event, events.NonFatalError | events.FatalError):
            found.mistakes[f"{type(event).__name__} {len(found.mistakes)}"] = str(event)
    return found


def _note(found: Findings, record: Any) -> None:
    found.cases += len(record.cases)
    found.operations.add(record.label)
    for interaction in record.interactions.values():
        if interaction.response is not None:
            found.statuses[interaction.response.status_code] += 1
            if interaction.response.status_code < 300:
                found.succeeded.add(record.label)
    for case_id, checks in record.checks.items():
        for check in checks:
            found.checks[check.name] += 1
            if check.failure_info is not None:
                response = record.interactions[case_id].response
                failure = check.failure_info.failure
                answer = "" if response is None else response.content[:1000].decode(errors="replace")
                message = f"{failure.message}\n{check.failure_info.code_sample[:1000]}\n{answer}"
                found.mistakes[f"{record.label}: {check.name}: {failure.title} ({len(found.mistakes)})"] = message


def test_calls_made_of_the_document_are_answered_as_it_says(dispatcher: Dispatcher) -> None:
    total = 0
    for role, key in dispatcher.keys.items():
        found = run(dispatcher, key)
        total += found.cases
        print(f"{role}: {found.summary()}")
        assert not found.mistakes, f"{len(found.mistakes)} mistakes\n" + "\n\n".join(
            f"{what}\n{detail}" for what, detail in list(found.mistakes.items())[:20]
        )
        assert len(found.operations) > 65
        assert found.checks
    assert total >= LEAST_CASES
