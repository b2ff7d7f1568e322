"""The OpenAPI document: whole in itself, with a body and an answer for each operation, and the page that is made of it."""

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from fastapi import APIRouter, FastAPI
from pydantic import create_model

from tests.openapi_check import document
from trainmaster.protocol.errors import Code
from trainmaster_dispatcher.api.app import make_routes
from trainmaster_dispatcher.api.openapi import DECLARED_MODELS, contract, operation_id, part_of
from trainmaster_dispatcher.services.settings import Settings

_SCRIPT = Path(__file__).parents[2] / "scripts/rest-reference"
_WITHOUT_BODY = {
    "suspendJob",
    "resumeJob",
    "runSchedule",
    "resumeWorkflow",
    "closeGroup",
    "retryJob",
    "cordonCluster",
    "uncordonCluster",
    "restorePerson",
    "cancelSimulation",
    "retryDeadLetter",
    "finishUpload",
    "signOut",
}
"""Operations that change something and are told nothing but its name."""
_WITHOUT_KEY = {"/v1/sign-in", "/v1/sign-in/key"}
_NOT_ALLOWED = {"/v1/jobs/{job_id}", "/v1/jobs/{job_id}/session-links"}
"""Calls that some jobs or clusters do not take."""


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "$ref":
                yield inner
            else:
                yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_every_reference_leads_somewhere() -> None:
    schemas = document()["components"]["schemas"]
    found = set(references(document()))
    assert len(found) > 50
    assert found <= {f"#/components/schemas/{name}" for name in schemas}


def test_each_operation_has_a_name_of_its_own_and_says_what_it_does() -> None:
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(names)) == len(names) > 60
    for method, path, operation in operations():
        assert operation["operationId"].isidentifier(), (method, path)
        assert operation["summary"], (method, path)
        assert operation["description"], (method, path)


def test_each_operation_says_what_it_takes_and_what_it_answers() -> None:
    for method, path, operation in operations():
        takes_one = "requestBody" in operation
        may_take_one = method in ("post", "put", "patch")
        assert takes_one == (may_take_one and operation["operationId"] not in _WITHOUT_BODY), (method, path)
        good = {status: answer for status, answer in operation["responses"].items() if status.startswith("2")}
        assert good, (method, path)
        for status, answer in good.items():
            has_body = status != "204"
            assert ("content" in answer) == has_body, (method, path, status)


def test_each_operation_has_a_tag_that_the_document_describes_and_needs_a_key() -> None:
    described = {tag["name"]: tag["description"] for tag in document()["tags"]}
    assert all(described.values())
    used = set()
    for method, path, operation in operations():
        (tag,) = operation["tags"]
        used.add(tag)
        needed: list[dict[str, Any]] = [] if path in _WITHOUT_KEY else [{"apiKey": []}]
        assert operation.get("security", document()["security"]) == needed, (method, path)
    assert used == set(described)


def test_each_parameter_has_a_description() -> None:
    for method, path, operation in operations():
        for parameter in operation.get("parameters", ()):
            assert parameter.get("description", "").endswith("."), (method, path, parameter["name"])
            assert "description" not in parameter["schema"], (method, path, parameter["name"])


_NOT_AN_OPENING = re.compile(r"(What|Whether|How|Of|Which|Why|When|Who)\b")


def test_each_model_and_each_field_has_a_description() -> None:
    texts = {}
    for name, schema in document()["components"]["schemas"].items():
        texts[name] = schema.get("description", "")
        for field, one in schema.get("properties", {}).items():
            texts[f"{name}.{field}"] = one.get("description", "")
    assert len(texts) > 800
    assert [name for name, text in texts.items() if not text.endswith((".", '"'))] == []
    assert [name for name, text in texts.items() if _NOT_AN_OPENING.match(text)] == []


def _contents() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the JSON values of all bodies and good answers, with their places."""
    for method, path, operation in operations():
        good = {status: answer for status, answer in operation["responses"].items() if status[0] == "2"}
        for what, described in {"body": operation.get("requestBody", {}), **good}.items():
            content = described.get("content", {}).get("application/json", {"schema": {}})
            if content != {"schema": {}}:  # lines of JSON, which some generators know as JSON alone
                yield f"{method} {path} {what}", content


def _mistakes(schema: dict[str, Any], value: Any) -> list[str]:
    whole = {**schema, "components": document()["components"]}
    validator = jsonschema.Draft202012Validator(whole, format_checker=jsonschema.FormatChecker())
    return [f"{one.json_path}: {one.message[:200]}" for one in validator.iter_errors(value)]


def test_each_body_and_each_answer_has_an_example_of_its_schema() -> None:
    found = 0
    for place, content in _contents():
        examples = [one["value"] for one in content.get("examples", {}).values()] or [content["example"]]
        for value in examples:
            assert not _mistakes(content["schema"], value), place
            found += 1
    assert found > 90


def test_each_example_of_a_model_or_a_field_follows_its_schema() -> None:
    found = 0
    for name, model in document()["components"]["schemas"].items():
        for field, schema in {"": model, **model.get("properties", {})}.items():
            for value in schema.get("examples", ()):
                assert not _mistakes(schema, value), (name, field)
                found += 1
    assert found > 100


def test_each_example_of_a_model_is_read_by_it() -> None:
    found = 0
    for model in DECLARED_MODELS.values():
        extra: Any = model.model_config.get("json_schema_extra") or {}
        for value in extra.get("examples", ()):
            model.model_validate(value)
            found += 1
    assert found > 40


def _takes(operation: dict[str, Any], where: str, *names: str) -> bool:
    return any(one["in"] == where and one["name"] in names for one in operation.get("parameters", ()))


def test_no_operation_declares_a_problem_that_it_cannot_have() -> None:
    for method, path, operation in operations():
        statuses = {status for status in operation["responses"] if status[0] in "45"}
        place = (method, path)
        assert statuses >= {"400", "401", "403", "408", "413", "422", "429", "431", "500", "503"}, place
        assert ("412" in statuses) == _takes(operation, "header", "if-match"), place
        assert ("304" in operation["responses"]) == (method == "get" and _takes(operation, "header", "if-match")), place
        assert "409" not in statuses or method != "get" or path.startswith(("/agent/", "/v1/simulations/")), place
        assert ("405" in statuses) == (path in _NOT_ALLOWED), place
        assert ("410" in statuses) == (path == "/agent/v1/streams/{stream}"), place
        if "{" in path:
            assert "404" in statuses, place
        for status in statuses:
            codes = re.findall("`([^`]+)`", operation["responses"][status]["description"])
            assert codes, (place, status)
            assert {str(Code(code).status) for code in codes} == {status}, (place, status)


def test_what_is_created_says_where_it_is() -> None:
    for method, path, operation in operations():
        for status in ("201", "202"):
            if status in operation["responses"]:
                assert "Location" in operation["responses"][status]["headers"], (method, path)


def test_each_audiences_document_has_the_tags_that_it_uses() -> None:
    agents = part_of(make_routes(Settings.model_validate({"database_url": "postgresql://x/y"})), "/agent/v1", "Agents")
    assert [tag["name"] for tag in agents["tags"]] == ["agents"]
    assert set(references(agents)) <= {f"#/components/schemas/{name}" for name in agents["components"]["schemas"]}


def test_the_page_is_made_of_the_document() -> None:
    script = runpy.run_path(str(_SCRIPT))
    assert script["PAGE"].read_text() == script["render"](script["document"]()), "run scripts/rest-reference"


def test_two_models_of_one_name_are_refused() -> None:
    contract(takes=create_model("OnlyInATest", number=(int, ...)))
    with pytest.raises(TypeError, match="two models of the API are called OnlyInATest"):
        contract(gives=create_model("OnlyInATest", text=(str, ...)))


def test_operations_are_named_after_their_functions() -> None:
    router = APIRouter()

    @router.get("/")
    async def list_all_things() -> None: ...

    app = FastAPI(generate_unique_id_function=operation_id)
    app.include_router(router)
    assert app.openapi()["paths"]["/"]["get"]["operationId"] == "listAllThings"
