"""Every list and mapping of what people and agents send has a bound, and is refused by its length before its entries are looked at."""

import json
import threading
import tracemalloc
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin

import orjson
import pytest
from pydantic import BaseModel, Field, ValidationError
from pydantic.fields import FieldInfo

from tests.fuzz.values import changed, to_json
from trainmaster.fake_cluster.fleet import Fleet
from trainmaster.protocol.agent import MOST_PUSH_VALUES, MOST_SYNC_VALUES, StreamPush, SyncRequest
from trainmaster.protocol.base import Bounded, Strict
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.jobs import LONGEST_STOP_GRACE, JobSpec
from trainmaster.protocol.json_limits import check_values, has_more_marks
from trainmaster.protocol.resource_kinds import KINDS
from trainmaster.protocol.simulations import SimulationSpec
from trainmaster.protocol.sync_parts import read_push, read_sync
from trainmaster.protocol.tenants import (
    JoinSpec,
    KeySpec,
    StopQuarantinedSpec,
)
from trainmaster.protocol.validation_errors import mistakes_of
from trainmaster_dispatcher.api.context import read_large_model, read_model
from trainmaster_dispatcher.services.job_actions import BulkFilter, BulkRequest
from trainmaster_dispatcher.services.stop_orders import grace_of, stop_of
from trainmaster_dispatcher.services.submission_parsing import Most, parse_json, prepare

MODELS: tuple[type[BaseModel], ...] = (
    JobSpec,
    *(kind.spec for kind in KINDS.values()),
    JoinSpec,
    KeySpec,
    SimulationSpec,
    BulkFilter,
    StopQuarantinedSpec,
    Fleet,
)
MESSAGES: tuple[type[BaseModel], ...] = (SyncRequest, StreamPush)
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


def _lacks_a_bound(annotation: Any, *, is_bounded: bool = False) -> bool:
    """Return whether a list or mapping in an annotation has no ``Bounded``. ``max_length`` alone bounds nothing."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _lacks_a_bound(inner[0], is_bounded=is_bounded or any(isinstance(one, Bounded) for one in inner[1:]))
    if origin in (list, dict, set, frozenset) or (origin is tuple and Ellipsis in inner):
        return not is_bounded or any(_lacks_a_bound(one) for one in inner)
    return any(_lacks_a_bound(one, is_bounded=is_bounded) for one in inner)


def _annotation(info: FieldInfo) -> Any:
    return Annotated[info.annotation, *info.metadata, None]


def _all_models() -> set[type[BaseModel]]:
    found: set[type[BaseModel]] = set()
    for model in (*MODELS, *MESSAGES):
        _models(found, model)
    return found


UNBOUNDED = {
    ("Role", "pod_template"),
    ("WorkloadObject", "manifest"),
    ("SimulationSpec", "fleet"),
    ("CaseSpec", "documents"),
    ("SimulationSpec", "documents"),
}
"""What is bounded as a whole: a template by the number of its values, a simulation by its body."""


def test_no_list_or_mapping_is_without_a_bound() -> None:
    without = {
        (model.__name__, name)
        for model in _all_models()
        for name, info in model.model_fields.items()
        if _lacks_a_bound(_annotation(info))
    }
    assert without == UNBOUNDED


MANY = 200_000
ATTACKS: dict[str, Any] = {
    "objects": [{}] * MANY,
    "lists": [[]] * MANY,
    "a list of objects": [[{}] * MANY],
    "a mapping": {f"k {n}": {} for n in range(MANY)},
    "a mapping of lists": {"k": [{}] * MANY},
    "a mapping of a mapping": {"k": {f"k {n}": [] for n in range(MANY)}},
}
COLLECTIONS = sorted(
    (
        (model, name)
        for model in _all_models()
        for name, info in model.model_fields.items()
        if any(kind in str(info.annotation) for kind in ("tuple[", "dict[", "list["))
    ),
    key=str,
)


def _mistakes_and_bytes(work: Callable[[], object]) -> tuple[int, int]:
    """Return how many mistakes pydantic collects in some work, and the most memory for it."""
    tracemalloc.start()
    try:
        work()
        count = 0
    except ValidationError as error:
        count = len(error.errors(include_url=False))
    finally:
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return count, most


@pytest.mark.parametrize(("model", "name"), COLLECTIONS, ids=lambda one: getattr(one, "__name__", one))
def test_whatever_a_list_or_mapping_holds_few_mistakes_are_collected(model: type[BaseModel], name: str) -> None:
    for what, attack in ATTACKS.items():
        field = model.model_fields[name].alias or name
        count, most = _mistakes_and_bytes(lambda: model.model_validate({field: attack}))  # noqa: B023 - called at once
        assert count < 60, what
        assert most < (40 if (model.__name__, name) in UNBOUNDED else 4) * 2**20, what


def _worst(annotation: Any, most: int = 300) -> Any:
    """Return a value that is wrong in as many places as its bounds allow, or in 300 of each list or mapping."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _worst(inner[0], min(most, *(one.most for one in inner[1:] if isinstance(one, Bounded)), most))
    if origin is dict:
        return {f"a key {number}": _worst(inner[1]) for number in range(most)}
    if origin in (list, tuple):
        return [_worst(inner[0])] * most
    if inner:
        return max(
            (_worst(one, most) for one in inner), key=lambda value: isinstance(value, list | dict) and len(value)
        )
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = {info.alias or name: _worst(_annotation(info)) for name, info in annotation.model_fields.items()}
        return fields | {f"unknown {number}": 0 for number in range(15)}
    return []


@pytest.mark.parametrize("model", [*MODELS, *MESSAGES], ids=lambda model: model.__name__)
def test_mistakes_everywhere_in_a_document_add_up_and_do_not_multiply(model: type[BaseModel]) -> None:
    document = _worst(model)
    count, most = _mistakes_and_bytes(lambda: model.model_validate(document))
    assert 0 < count < (100 if model in MESSAGES else 1500)
    assert most < 8 * 2**20


def test_mistakes_in_many_entries_are_shown_at_their_places() -> None:
    taken = {"key": "a", "operator": "In", "values": ["b"]}
    terms = [taken, {}, taken, taken | {"values": ["b", 7, "c", 8]}]
    with pytest.raises(ValidationError) as refused:
        JobSpec.model_validate(changed(JOB, (*TEMPLATE, "nodeAffinity"), terms))
    at = "roles[0].template.nodeAffinity"
    found = {one.path for one in mistakes_of(refused.value)}
    assert found == {f"{at}[1].key", f"{at}[1].operator", f"{at}[3].values[1]", f"{at}[3].values[3]"}


def _sync(**fields: Any) -> bytes:
    return orjson.dumps({"session": "a", "holder": "b", "number": 1} | fields)


def test_a_sync_with_more_runs_than_there_may_be_is_refused_before_they_are_looked_at() -> None:
    body = _sync(runs=ATTACKS["objects"])
    count, most = _mistakes_and_bytes(lambda: read_sync(body))
    assert count == 1
    assert most < 40 * 2**20


def test_a_sync_of_bad_reports_costs_little_for_each_and_shows_the_first_hundred() -> None:
    bad = {"run": "", "generation": 0, "seq": 0, "state": ""}
    entries: tuple[Any, ...] = ({}, [], bad)
    for entry in entries:
        body = _sync(runs=[entry] * 20_000, capacity={"groups": ATTACKS["objects"]})
        tracemalloc.start()
        sync = read_sync(body)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < 50 * 2**20
        assert (len(sync.refused), sync.more_refused) == (101, 19_900)
        assert sync.capacity_mistake == "groups: has 200000 entries, at most 20000 are allowed"
        assert sync.refused_in_answer[-1].message == "and 19900 more reports have mistakes"
        assert not sync.names_all


def test_reports_beyond_the_first_hundred_with_mistakes_count_as_well() -> None:
    bad: list[Any] = [{}] * 150
    good = [{"run": f"j-{n}-1", "generation": 0, "seq": 1, "state": "running"} for n in range(3)]
    newer = [one | {"end": {"category": "of a newer agent"}} for one in good]
    sync = read_sync(_sync(runs=[*bad, *good, *newer]))
    assert (len(sync.refused), sync.more_refused, len(sync.request.runs)) == (100, 53, 6)


def test_a_body_with_too_many_values_is_refused_before_it_is_parsed() -> None:
    for inside in (b"{}", b"[]", b"[[[[]]]]", b'{"a":1}', b'""', b"0", b'"a","b,,,,,"'):
        body = (
            b'{"session":"a","holder":"b","number":1,"unknown":['
            + b",".join([inside] * (2 * MOST_SYNC_VALUES + 1))
            + b"]}"
        )
        for read in (read_sync, read_push):
            tracemalloc.start()
            with pytest.raises(ProblemError) as refused:
                read(body)
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert refused.value.code is Code.BODY_TOO_LARGE
            assert most < 2**20


def test_commas_and_brackets_in_texts_are_no_values() -> None:
    text = '{"a": [1, 2, "b\\"]}, ' * 40_000
    push = {"session": "a", "chunks": [{"role": "r", "index": 0, "offset": 0, "data": text, "nextOffset": 1}] * 3}
    assert read_push(orjson.dumps(push)).chunks[2].data == text
    for rest in (b'"', b'"\\', b'"' + b'\\"' * 3 * MOST_PUSH_VALUES):
        check_values(b"," * MOST_PUSH_VALUES + rest + b",", MOST_PUSH_VALUES)


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
