"""The OpenAPI document: whole in itself, with a body and an answer for each operation, and the page that is made of it."""

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from pydantic import create_model

from tests.openapi_check import document
from trainmaster_dispatcher.api.openapi import contract, operation_id

_SCRIPT = Path(__file__).parents[2] / "scripts/rest-reference"
_WITHOUT_BODY = {
    "suspendJob",
    "resumeJob",
    "retryJob",
    "cordonCluster",
    "uncordonCluster",
    "cancelSimulation",
    "retryDeadLetter",
}
"""Operations that change something and are told nothing but its name."""


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
