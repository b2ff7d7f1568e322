"""Calls that take no body: one with fields is refused, for each of the calls; none and an empty mapping are allowed."""

import re
from collections.abc import AsyncIterator

import pytest

from tests.conftest import Service
from tests.openapi_check import document

OPERATIONS = sorted(
    (method.upper(), path)
    for path, methods in document()["paths"].items()
    for method, operation in methods.items()
    if "requestBody" not in operation and not path.startswith("/agent/") and path != "/v1/changes"
)
"""Of an admin: all but a stream of an agent, and one that does not end."""
_PARAMETER = re.compile(r"\{(\w+)\}")
REFUSED = {
    "a field": (b'{"on": false}', 422, "invalid-spec", ["on"]),
    "two fields": (b'{"on": false, "bogus": 1}', 422, "invalid-spec", ["on", "bogus"]),
    "a list": (b"[1]", 422, "invalid-spec", [""]),
    "a text": (b'"on"', 422, "invalid-spec", [""]),
    "no JSON": (b"not json", 400, "malformed-body", None),
    "a field twice": (b'{"on": 1, "on": 2}', 422, "invalid-spec", ["on"]),
    "too much": (b'{"on": "%s"}' % (b"x" * 70_000), 413, "body-too-large", None),
}


def _address(path: str) -> str:
    return _PARAMETER.sub(lambda found: "1" if found[1] in ("simulation", "letter", "key_id") else "nosuch", path)


@pytest.mark.parametrize(("body", "status", "code", "paths"), REFUSED.values(), ids=REFUSED)
async def test_no_call_ignores_a_body(
    service: Service, body: bytes, status: int, code: str, paths: list[str] | None
) -> None:
    assert len(OPERATIONS) > 40
    headers = {"Content-Type": "application/json"}
    for method, path in OPERATIONS:
        answer = await service.http.request(method, _address(path), content=body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (status, code), (method, path, answer.text)
        if paths is not None:
            assert [one["path"] for one in answer.json()["mistakes"]] == paths, (method, path)


@pytest.mark.parametrize("body", [b"", b"{}", b" {} \n", b"  "])
async def test_an_empty_body_is_none(service: Service, body: bytes) -> None:
    for method, path in OPERATIONS:
        address = _address(path)
        answer = await service.http.request(method, address, content=body)
        without = await service.http.request(method, address)
        assert answer.status_code == without.status_code, (method, path, answer.text)
        assert answer.json().get("code") == without.json().get("code") if answer.content else not without.content
        if answer.status_code in (400, 413, 422):
            assert "body" not in answer.text, (method, path)


async def test_what_a_body_says_is_not_done_as_if_it_were_not_there(service: Service) -> None:
    job_id = await service.submit()
    for path, body in (
        ("/v1/clusters/edge/cordon", {"on": False}),
        ("/v1/clusters/edge/uncordon", {"on": False}),
        (f"/v1/jobs/{job_id}/suspend", {"bogus": 1}),
    ):
        answer = await service.http.post(path, json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid-spec")
    assert (await service.job(job_id))["shownState"] == "queued"
    audit = (await service.http.get("/v1/audit", params={"action": "cordon"})).json()["audit"]
    assert audit == []
    assert (await service.http.post("/v1/clusters/edge/cordon", json={})).json()["cordoned"] is True


async def test_a_body_in_chunks_is_read_too(service: Service) -> None:
    async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    answer = await service.http.post("/v1/clusters/edge/cordon", content=chunks(b'{"on"', b": true}"))
    assert answer.status_code == 422
    answer = await service.http.post("/v1/clusters/edge/cordon", content=chunks(b"{", b"}"))
    assert answer.status_code == 200
