"""Every list and mapping of what people write has a bound, and is refused by its length before its entries are looked at."""

import json
import threading
from typing import Any, get_args

import orjson
import pytest
from pydantic import BaseModel, Field, ValidationError
from pydantic.fields import FieldInfo

from tests.fuzz.values import changed, to_json
from trainmaster.protocol.base import Bounded, Strict
from trainmaster.protocol.bursting import BurstPolicySpec
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.jobs import LONGEST_STOP_GRACE, JobSpec
from trainmaster.protocol.json_limits import has_more_marks
from trainmaster.protocol.prices import PriceBookSpec
from trainmaster.protocol.simulations import SimulationSpec
from trainmaster.protocol.tenants import ClusterSpec, DatasetSpec, JoinSpec, KeySpec, QueueSpec, ReservationSpec
from trainmaster.protocol.validation_errors import mistakes_of
from trainmaster_dispatcher.api.context import read_large_model, read_model
from trainmaster_dispatcher.services.job_actions import BulkFilter, BulkRequest
from trainmaster_dispatcher.services.stop_orders import grace_of, stop_of
from trainmaster_dispatcher.services.submission_parsing import Most, parse_json, prepare

MODELS: tuple[type[BaseModel], ...] = (
    JobSpec,
    QueueSpec,
    ClusterSpec,
    DatasetSpec,
    JoinSpec,
    KeySpec,
    ReservationSpec,
    PriceBookSpec,
    BurstPolicySpec,
    SimulationSpec,
    BulkFilter,
)
JOB: dict[str, Any] = {
    "name": "job",
    "queue": "default",
    "labels": {},
    "roles": [
        {
            "name": "main",
            "template": {
                "command": ["true"],
                "args": [],
                "env": {},
                "resources": {},
                "ports": [],
                "nodeSelector": {},
                "nodeAffinity": [{"key": "a", "operator": "In", "values": ["b"]}],
                "tolerations": [],
            },
        }
    ],
    "placement": {"clusters": [], "kinds": [], "regions": [], "preferred": [], "selector": {}, "datasets": []},
    "retries": {"exitCodes": [], "categories": []},
    "notify": [],
}
TEMPLATE = ("roles", 0, "template")
LONG = {
    ("roles",): 16,
    ("labels",): 100,
    (*TEMPLATE, "command"): 4096,
    (*TEMPLATE, "args"): 4096,
    (*TEMPLATE, "env"): 2000,
    (*TEMPLATE, "resources"): 64,
    (*TEMPLATE, "ports"): 100,
    (*TEMPLATE, "nodeSelector"): 100,
    (*TEMPLATE, "nodeAffinity"): 100,
    (*TEMPLATE, "nodeAffinity", 0, "values"): 1000,
    (*TEMPLATE, "tolerations"): 100,
    ("placement", "clusters"): 1000,
    ("placement", "regions"): 100,
    ("placement", "preferred"): 20,
    ("placement", "selector"): 100,
    ("placement", "datasets"): 100,
    ("retries", "exitCodes"): 255,
    ("notify",): 8,
}


@pytest.mark.parametrize("path", LONG, ids=lambda path: ".".join(map(str, path)))
def test_what_is_too_long_is_one_mistake_whatever_is_in_it(path: tuple[str | int, ...]) -> None:
    most = LONG[path]
    lists: tuple[Any, ...] = ([[]] * (most + 1), {f"k {n}": [] for n in range(most + 1)}, [0] * 300_000)
    for entries in lists:
        with pytest.raises(ValidationError) as refused:
            JobSpec.model_validate(changed(JOB, path, entries))
        (mistake,) = mistakes_of(refused.value)
        assert mistake.message == f"has {len(entries)} entries, at most {most} are allowed"


def _models(found: set[type[BaseModel]], annotation: Any) -> None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation not in found:
        found.add(annotation)
        for info in annotation.model_fields.values():
            _models(found, info.annotation)
    for inner in get_args(annotation):
        _models(found, inner)


def _is_bounded(info: FieldInfo) -> bool:
    return any(getattr(one, "max_length", None) is not None or isinstance(one, Bounded) for one in info.metadata)


UNBOUNDED = {
    ("Role", "pod_template"),
    ("SimulationSpec", "fleet"),
    ("CaseSpec", "documents"),
    ("SimulationSpec", "documents"),
}
"""What is bounded as a whole: a template by the number of its values, a simulation by its body."""


def test_no_list_or_mapping_is_without_a_bound() -> None:
    found: set[type[BaseModel]] = set()
    for model in MODELS:
        _models(found, model)
    without = {
        (model.__name__, name)
        for model in found
        for name, info in model.model_fields.items()
        if any(kind in str(info.annotation) for kind in ("tuple[", "dict[", "list[")) and not _is_bounded(info)
    }
    assert without <= UNBOUNDED


def test_a_longer_grace_than_there_is_is_refused() -> None:
    for grace, is_taken in (("10m", True), ("601s", False), ("3650d", False)):
        body = to_json(JOB | {"stopGrace": grace})
        if is_taken:
            assert prepare(body, Most()).specs[0].grace_seconds == 600
            continue
        with pytest.raises(ProblemError) as refused:
            prepare(body, Most())
        assert (refused.value.code, refused.value.mistakes[0].path) == (Code.INVALID_SPEC, "stopGrace")


def test_a_longer_grace_that_was_stored_counts_as_the_longest_there_is() -> None:
    for stored in ("3650d", "1d" * 100):
        assert grace_of({"stopGrace": stored}) == LONGEST_STOP_GRACE
        assert stop_of({"stopGrace": stored}, "preempt")["graceSeconds"] == LONGEST_STOP_GRACE
    assert JobSpec.model_validate(JOB | {"stopGrace": "3650d"}).grace_seconds == LONGEST_STOP_GRACE
    assert grace_of({"stopGrace": "3s"}) == 3
    assert grace_of({}) == 10


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_very_many_unknown_fields_are_one_mistake(model: type[BaseModel]) -> None:
    with pytest.raises(ValidationError) as refused:
        model.model_validate({f"unknown{n}" + "x" * 1000: 1 for n in range(5000)})
    (mistake,) = mistakes_of(refused.value)
    assert mistake.message.startswith("has 5000 fields that are not known; the first: unknown0xx")
    assert len(mistake.message) < 500


def test_a_few_unknown_fields_are_a_mistake_each() -> None:
    with pytest.raises(ValidationError) as refused:
        JobSpec.model_validate(JOB | {f"unknown{n}": 1 for n in range(16)})
    assert [one.path for one in mistakes_of(refused.value)] == [f"unknown{n}" for n in range(16)]


def marks(body: bytes) -> int:
    """Return the number of commas, colons and opening brackets, as a parser finds them."""

    def of(value: Any) -> int:
        if isinstance(value, dict):
            return 1 + max(0, 2 * len(value) - 1) + sum(map(of, value.values()))
        if isinstance(value, list):
            return 1 + max(0, len(value) - 1) + sum(map(of, value))
        return 0

    return of(json.loads(body))


@pytest.mark.parametrize(
    "value",
    [
        [],
        {},
        [[], [], [{}]],
        {"a": 1, "b": {"c": [1, 2, 3]}},
        ["," * 1000, ":", "[{" * 50],
        {'",\\"': ["\\", '\\",', '\\\\",[['], "\n": "\u00e9,"},
        "," * 100,
        [1, 2.5, None, True, '"'],
        JOB,
    ],
    ids=str,
)
def test_values_are_counted_without_those_in_texts(value: Any) -> None:
    body = to_json(value)
    count = marks(body)
    assert not has_more_marks(body, count)
    if count:
        assert has_more_marks(body, count - 1)


@pytest.mark.parametrize(
    "body",
    [
        b'["' + b"," * 2_000_000 + b'"]',
        b'["' + rb"\"\\" * 500_000 + b'"]',
        b'["' + b"," * 2_000_000,
        b"x" * 2_000_000 + b"," * 5,
        b"," * 5 + b"x" * 2_000_000,
        b'"' * 2_000_001 + b"," * 5,
    ],
    ids=["one text", "escapes", "no end", "no JSON", "no JSON after", "quotes"],
)
def test_texts_are_counted_in_one_pass(body: bytes) -> None:
    assert not has_more_marks(body, 10)


def test_too_many_values_are_refused_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orjson, "loads", None)
    for body in (b"[" + b"[]," * 100 + b"[]]", b"{" + b'"a":1,' * 100 + b'"a":1}', b"[" + b"1," * 100):
        with pytest.raises(ProblemError) as refused:
            parse_json(body, 100)
        assert refused.value.code is Code.BODY_TOO_LARGE


class Noted(Strict):
    """A model that notes in which thread it was read."""

    text: str
    threads: list[int] = Field(default_factory=list)

    def model_post_init(self, _context: Any) -> None:
        self.threads.append(threading.get_ident())


async def test_only_small_bodies_are_read_while_nothing_else_is_done() -> None:
    large = to_json({"text": "x" * 70_000})
    with pytest.raises(ProblemError) as refused:
        read_model(BulkRequest, large)
    assert refused.value.code is Code.BODY_TOO_LARGE
    own = threading.get_ident()
    assert (await read_large_model(Noted, to_json({"text": "x"}))).threads == [own]
    (other,) = (await read_large_model(Noted, large)).threads
    assert other != own
    with pytest.raises(ProblemError) as refused:
        await read_large_model(Noted, to_json({"text": "x" * 1_100_000}))
    assert refused.value.code is Code.BODY_TOO_LARGE
