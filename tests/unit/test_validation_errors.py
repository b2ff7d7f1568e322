"""Each kind of error that a model of people's input can have is told in the words of users."""

import math
import re
from collections.abc import Iterator
from typing import Annotated, Any, get_args

import pytest
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from pydantic_core.core_schema import ErrorType

from tests.forbidden_words import forbidden
from trainmaster.fake_cluster.fleet import Fleet
from trainmaster.protocol.base import PATTERNS, Lenient, Strict, bounded
from trainmaster.protocol.bursting import BurstPolicySpec
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.prices import PriceBookSpec
from trainmaster.protocol.simulations import SimulationSpec
from trainmaster.protocol.tenants import ClusterSpec, KeySpec, PriorityClassSpec, QueueSpec, ReservationSpec
from trainmaster.protocol.validation_errors import SENTENCES, mistakes_of, sentence_of
from trainmaster_agent.runtime.kubernetes.config import KubernetesCluster
from trainmaster_agent.runtime.local.config import LocalCluster

__all__ = ["Fleet", "KubernetesCluster", "LocalCluster"]

JOB: dict[str, Any] = {"name": "a", "queue": "q", "roles": [{"name": "main", "template": {"command": ["true"]}}]}
QUEUE: dict[str, Any] = {"path": "q"}
BURST: dict[str, Any] = {"name": "b", "queues": ["q"], "budget": {"day": 1}}
BOOK: dict[str, Any] = {"name": "b"}
WINDOW: dict[str, Any] = {
    "name": "w",
    "queue": "q",
    "nodes": 1,
    "start": "2036-11-28T00:00:00Z",
    "end": "2036-11-29T00:00:00Z",
}


def template(**fields: Any) -> dict[str, Any]:
    return {"roles": [{"name": "main", "template": fields}]}


CASES: dict[str, tuple[type[BaseModel], dict[str, Any], str, str, str]] = {
    # model, what it is given, the type of the error, its path, its sentence
    "missing": (PriorityClassSpec, {"name": "a"}, "missing", "value", "is missing; it is needed"),
    "unknown": (
        JobSpec,
        JOB | {"timelimit": "1h"},
        "extra_forbidden",
        "timelimit",
        "this field is not known; did you mean timeLimit?",
    ),
    "no mapping": (JobSpec, JOB | {"retries": [1]}, "model_type", "retries", "must be a mapping, not a list"),
    "a mapping that is a text": (
        JobSpec,
        JOB | {"labels": "a=b"},
        "dict_type",
        "labels",
        "must be a mapping, not 'a=b'",
    ),
    "no list": (
        JobSpec,
        JOB | template(command="python train.py --lr 0.1"),
        "tuple_type",
        "roles[0].template.command",
        'must be a list, not \'python train.py --lr 0.1\'; as a list it is ["python", "train.py", "--lr", "0.1"]',
    ),
    "a list that is null": (JobSpec, JOB | {"notify": None}, "tuple_type", "notify", "must be a list, not null"),
    "a list that is a number": (
        JobSpec,
        JOB | {"retries": {"exitCodes": 1}},
        "tuple_type",
        "retries.exitCodes",
        "must be a list, not 1; as a list it is [1]",
    ),
    "too few entries": (
        BurstPolicySpec,
        BURST | {"queues": []},
        "too_short",
        "queues",
        "must have at least 1 entry, this has none",
    ),
    "no text": (
        JobSpec,
        JOB | template(env={"A": 1}),
        "string_type",
        "roles[0].template.env.A",
        'must be a text, not 1; put it in quotes: "1"',
    ),
    "a flag that is a text's": (
        JobSpec,
        JOB | template(env={"A": True}),
        "string_type",
        "roles[0].template.env.A",
        'must be a text, not true; put it in quotes: "true"',
    ),
    "an empty text": (
        KeySpec,
        {"name": "", "role": "admin"},
        "string_too_short",
        "name",
        "must not be empty",
    ),
    "a long text": (
        ClusterSpec,
        {"name": "c", "region": "r" * 64},
        "string_too_long",
        "region",
        "has 64 characters, at most 63 are allowed",
    ),
    "a pattern": (
        JobSpec,
        JOB | {"labels": {"team": "a b"}},
        "string_pattern_mismatch",
        "labels.team",
        "must be empty, or letters, digits, '-', '_' and '.' that begin and end with a letter or a digit, not 'a b'",
    ),
    "a pattern of a name": (
        JobSpec,
        JOB | template(resources={"nvidia gpu": 1}),
        "string_pattern_mismatch",
        'roles[0].template.resources["nvidia gpu"]',
        "the name must be a resource such as cpu or nvidia.com/gpu: letters, digits, '.', '/', '_' and '-', not 'nvidia gpu'",
    ),
    "a name that is a number": (
        JobSpec,
        JOB | {"labels": {1: "a"}},
        "string_type",
        "labels[1]",
        'the name must be a text, not 1; put it in quotes: "1"',
    ),
    "no whole number": (
        JobSpec,
        JOB | {"priority": "5"},
        "int_type",
        "priority",
        "must be a whole number, not '5'; write 5 without quotes",
    ),
    "a flag that is a number's": (
        JobSpec,
        JOB | {"priority": True},
        "int_type",
        "priority",
        "must be a whole number, not true",
    ),
    "a fraction": (JobSpec, JOB | {"minMember": 1.5}, "int_type", "minMember", "must be a whole number, not 1.5"),
    "no number": (QueueSpec, QUEUE | {"weight": "much"}, "float_type", "weight", "must be a number, not 'much'"),
    "a number that is a flag": (
        QueueSpec,
        QUEUE | {"weight": True},
        "float_type",
        "weight",
        "must be a number, not true",
    ),
    "a number without an end": (
        QueueSpec,
        QUEUE | {"weight": math.nan},
        "finite_number",
        "weight",
        "must be a finite number, not nan",
    ),
    "no flag": (JobSpec, JOB | {"suspend": "yes"}, "bool_type", "suspend", "must be true or false, not 'yes'"),
    "too small": (
        QueueSpec,
        {"path": "a", "weight": 0},
        "greater_than_equal",
        "weight",
        "must be at least 0.000001, not 0",
    ),
    "too little": (JobSpec, JOB | {"minMember": 0}, "greater_than_equal", "minMember", "must be at least 1, not 0"),
    "too much": (JobSpec, JOB | {"priority": 1001}, "less_than_equal", "priority", "must be at most 1000, not 1001"),
    "nothing": (
        PriceBookSpec,
        BOOK | {"spot": {"cpu": "x"}},
        "decimal_parsing",
        "spot.cpu",
        "must be a number, not 'x'",
    ),
    "a price that is a list": (
        PriceBookSpec,
        BOOK | {"spot": {"cpu": []}},
        "decimal_type",
        "spot.cpu",
        "must be a number, not a list",
    ),
    "above nothing": (
        BurstPolicySpec,
        BURST | {"when": {"utilisation": {"above": 0}}},
        "greater_than",
        "when.utilisation.above",
        "must be more than 0, not 0",
    ),
    "below a bound": (
        SimulationSpec,
        {"workload": {"csv": "x"}, "seed": 2**63},
        "less_than",
        "seed",
        f"must be less than {2**63}, not a huge number",
    ),
    "many places": (
        BurstPolicySpec,
        BURST | {"budget": {"day": "0.0000000001"}},
        "decimal_max_places",
        "budget.day",
        "has more than 9 decimal places: '0.0000000001'",
    ),
    "a choice": (
        JobSpec,
        JOB | {"memberFailure": {"action": "restartgang"}},
        "literal_error",
        "memberFailure.action",
        "must be one of failRun, restartMember, restartGang, not 'restartgang'; did you mean restartGang?",
    ),
    "an enumeration": (
        QueueSpec,
        QUEUE | {"order": "bestEfort"},
        "enum",
        "order",
        "must be one of strict, bestEffort, not 'bestEfort'; did you mean bestEffort?",
    ),
    "no time": (
        ReservationSpec,
        WINDOW | {"start": "2036-13-28T00:00:00Z"},
        "datetime_from_date_parsing",
        "start",
        "must be a time as in RFC 3339 with its zone, such as 2026-11-28T08:00:00Z, not '2036-13-28T00:00:00Z'",
    ),
    "no zone": (
        ReservationSpec,
        WINDOW | {"start": "2036-11-28T00:00:00"},
        "timezone_aware",
        "start",
        "needs a zone, such as the Z of 2026-11-28T08:00:00Z",
    ),
    "a rule of several fields": (
        JobSpec,
        JOB | {"minMember": 2},
        "value_error",
        "",
        "minMember 2 is more than the 1 members of the roles",
    ),
    "a surrogate": (
        JobSpec,
        JOB | {"labels": {"a": "\ud800"}},
        "string_unicode",
        "labels.a",
        "has characters that are not valid Unicode",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_error_is_told_with_its_place_in_words_of_users(case: str) -> None:
    model, given, kind, path, sentence = CASES[case]
    with pytest.raises(ValidationError) as caught:
        model.model_validate(given)
    assert [one["type"] for one in caught.value.errors()] == [kind]
    (mistake,) = mistakes_of(caught.value)
    assert (mistake.path, mistake.message) == (path, sentence)
    assert not forbidden(mistake.message)
    assert not forbidden(mistake.path)


class Listing(Strict):
    """A list of numbers."""

    numbers: Annotated[tuple[int, ...], bounded(100)]


def models_of(root: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for model in root.__subclasses__():
        yield model
        yield from models_of(model)


def schemas(value: Any) -> Iterator[dict[str, Any]]:
    """Yield each schema in the schema of a model."""
    if isinstance(value, dict):
        if isinstance(value.get("type"), str):
            yield value
        for key, inner in value.items():
            if key not in ("metadata", "serialization", "default", "expected", "members"):
                yield from schemas(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from schemas(inner)


ERRORS: dict[str, tuple[str, ...]] = {
    "any": (),
    "none": ("none_required",),
    "bool": ("bool_type", "bool_parsing"),
    "int": ("int_type", "int_parsing", "int_from_float", "int_parsing_size", "greater_than", "less_than"),
    "float": ("float_type", "float_parsing", "finite_number", "greater_than_equal", "less_than_equal", "multiple_of"),
    "decimal": ("decimal_type", "decimal_parsing", "decimal_max_places", "decimal_max_digits", "decimal_whole_digits"),
    "str": ("string_type", "string_unicode", "string_too_short", "string_too_long", "string_pattern_mismatch"),
    "literal": ("literal_error",),
    "enum": ("enum",),
    "datetime": (
        "datetime_type",
        "datetime_parsing",
        "datetime_object_invalid",
        "datetime_from_date_parsing",
        "timezone_aware",
    ),
    "list": ("list_type", "too_short", "too_long"),
    "tuple": ("tuple_type", "too_short", "too_long", "missing"),
    "dict": ("dict_type", "too_short", "too_long"),
    "model": ("model_type", "model_attributes_type"),
    "model-fields": ("missing", "extra_forbidden", "invalid_key", "recursion_loop"),
    "function-before": ("value_error", "assertion_error"),
    "function-after": ("value_error", "assertion_error"),
    "function-wrap": ("value_error", "assertion_error"),
    "function-plain": ("value_error", "assertion_error"),
    # These have no error of their own.
    "nullable": (),
    "default": (),
    "union": (),
    "model-field": (),
    "definitions": (),
    "definition-ref": (),
    "no-info": (),
    "with-info": (),
    "chain": (),
    "lax-or-strict": (),
    "json-or-python": (),
    "is-instance": ("is_instance_of",),
}
"""By kind of schema, pydantic's errors."""


@pytest.mark.parametrize("root", [Strict, Lenient], ids=lambda root: root.__name__)
def test_every_kind_of_error_of_a_model_has_a_sentence(root: type[BaseModel]) -> None:
    for model in {*models_of(root)}:
        for schema in schemas(model.__pydantic_core_schema__):
            assert schema["type"] in ERRORS, f"{model.__name__}: {schema['type']}"
            missing = set(ERRORS[schema["type"]]) - SENTENCES.keys()
            assert not missing, f"{model.__name__}: {schema['type']}"


def test_every_sentence_is_of_an_error_of_pydantic() -> None:
    assert SENTENCES.keys() <= set(get_args(ErrorType))


def test_every_pattern_of_a_model_has_words() -> None:
    for model in {*models_of(Strict)}:
        for schema in schemas(model.__pydantic_core_schema__):
            pattern = schema.get("pattern") if schema["type"] == "str" else None
            assert pattern is None or pattern in PATTERNS, f"{model.__name__}: {pattern}"


def test_numbers_and_flags_of_every_model_are_read_from_numbers_and_flags_alone() -> None:
    for model in {*models_of(Strict)}:
        own = [
            schema for schema in schemas(model.__pydantic_core_schema__) if schema["type"] in ("int", "float", "bool")
        ]
        assert all(schema.get("strict") for schema in own if not _is_of_lenient(model, schema)), model.__name__


def _is_of_lenient(model: type[BaseModel], schema: dict[str, Any]) -> bool:
    """Return whether a schema is one of a lenient model inside of a model."""
    inside = [
        part
        for one in schemas(model.__pydantic_core_schema__)
        if one["type"] == "model" and not issubclass(one["cls"], Strict)
        for part in schemas(one)
    ]
    return any(part is schema for part in inside)


def test_an_error_of_an_unknown_kind_shows_none_of_its_words() -> None:
    sentence = sentence_of({"type": "url_parsing", "loc": (), "msg": "Input should be a valid URL", "input": "x"})
    assert sentence == "is not valid: 'x'"


def test_a_field_is_read_by_its_name_on_the_wire_alone_and_made_by_its_name_in_python() -> None:
    made = JobSpec(name="a", queue="q", roles=JOB["roles"], time_limit="1h", stop_grace="5s")
    assert made.to_wire()["timeLimit"] == "1h"
    with pytest.raises(ValidationError) as caught:
        JobSpec.model_validate(JOB | {"time_limit": "1h", "stop_grace": "5s"})
    assert {one.path for one in mistakes_of(caught.value)} == {"time_limit", "stop_grace"}
    with pytest.raises(ValidationError) as caught:
        JobSpec.model_validate(JOB | {"roles": [{"name": "a", "min_replicas": 1, "template": {"working_dir": "/"}}]})
    assert {one.path for one in mistakes_of(caught.value)} == {"roles[0].min_replicas", "roles[0].template.working_dir"}
    with pytest.raises(ValidationError):
        QueueSpec.model_validate_json('{"path": "q", "max_running": 1}')


def test_no_model_of_people_has_two_ways_to_write_a_field() -> None:
    for model in {*models_of(Strict)}:
        for name, info in model.model_fields.items():
            if info.alias != name:
                with pytest.raises(ValidationError) as caught:
                    model.model_validate({name: None})
                unknown = [one["loc"] for one in caught.value.errors() if one["type"] == "extra_forbidden"]
                assert (name,) in unknown or model.model_config["extra"] != "forbid", f"{model.__name__}.{name}"


def test_a_whole_number_with_a_fraction_of_zero_is_whole() -> None:
    assert JobSpec.model_validate(JOB | {"priority": 2.0}).priority == 2


@pytest.mark.parametrize("entries", [3, 30])
def test_mistakes_in_entries_of_a_list_keep_their_words(entries: int) -> None:
    with pytest.raises(ValidationError) as caught:
        Listing.model_validate({"numbers": [True] * entries})
    found = mistakes_of(caught.value)
    assert found[1].path == "numbers[1]"
    assert {one.message for one in found} == {"must be a whole number, not true"}
    assert re.fullmatch(r"numbers\[\d+\]", found[-1].path)


@pytest.mark.parametrize(
    ("given", "paths"), [([], ["nodes"]), ([{"nme": "x"}], ["nodes[0].allocatable", "nodes[0].nme"])]
)
def test_a_list_with_wrong_entries_is_not_told_to_be_short(given: list[Any], paths: list[str]) -> None:
    with pytest.raises(ValidationError) as raised:
        LocalCluster.model_validate({"nodes": given})
    assert [one.path for one in mistakes_of(raised.value)] == paths


def test_a_set_that_is_short_because_entries_are_equal_is_told() -> None:
    with pytest.raises(ValidationError) as raised:
        TypeAdapter(Annotated[frozenset[int], Field(min_length=2)]).validate_python([1, 1])
    assert [one.message for one in mistakes_of(raised.value)] == ["must have at least 2 entries, this has 1"]
