"""What answers say of themselves: methods allowed, nothing stored or loaded from elsewhere, bounded quotations, who called."""

import asyncio
import logging
import re

import pytest

from tests.conftest import Service, job
from tests.integration.rows import picture
from tests.integration.test_authorization import make_key
from trainmaster.process_logs import AboutFilter
from trainmaster_dispatcher.services import job_queries


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/jobs", "GET, HEAD, OPTIONS, POST"),
        ("/v1/queues", "GET, HEAD, OPTIONS"),
        ("/v1/queues/org/a", "DELETE, GET, HEAD, OPTIONS, PATCH, PUT"),
        ("/v1/jobs/hello-1234567/cancel", "OPTIONS, POST"),
        ("/v1/jobs/cancel", "OPTIONS, POST"),
        ("/healthz", "GET, HEAD, OPTIONS"),
        ("/docs", "GET, HEAD, OPTIONS"),
    ],
)
async def test_a_method_that_is_not_taken_is_answered_with_those_that_are(
    service: Service, path: str, allowed: str
) -> None:
    refused = await service.http.request("LOCK", path)
    assert (refused.status_code, refused.json()["code"]) == (405, "method-not-allowed")
    options = await service.http.options(path)
    assert (options.status_code, options.content) == (204, b"")
    assert refused.headers["allow"] == options.headers["allow"] == allowed


async def test_head_answers_as_get_without_the_body(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trainmaster.access")
    job_id = await service.submit()
    events = {"Accept": "text/event-stream"}
    for path, headers in (
        ("/v1/jobs", {}),
        (f"/v1/jobs/{job_id}", {}),
        ("/healthz", {}),
        ("/docs", {}),
        (f"/v1/jobs/{job_id}/events", events),  # a stream that would go on until the job has ended
        ("/v1/jobs/none-0000001", {}),
    ):
        async with asyncio.timeout(10):
            head = await service.http.head(path, headers=headers)
        assert head.content == b""
        if headers:
            assert (head.status_code, head.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
            continue
        full = await service.http.get(path)
        assert (head.status_code, head.headers["content-type"]) == (full.status_code, full.headers["content-type"])
        assert head.headers["content-length"] == full.headers["content-length"]
    assert "HEAD /v1/jobs 200" in caplog.messages
    assert (await service.as_key("tmk_wrong").head("/v1/jobs")).status_code == 401


async def test_what_was_made_says_where_it_is(service: Service) -> None:
    for headers in ({}, {"Idempotency-Key": "one"}, {"Idempotency-Key": "one"}):
        made = await service.http.post("/v1/jobs", json=job(), headers=headers)
        shown = await service.http.get(made.headers["location"])
        assert shown.json()["id"] == made.json()["id"]
    assert "location" not in (await service.http.post("/v1/jobs", json={"jobs": [job(), job()]})).headers
    assert "location" not in (await service.http.post("/v1/jobs?dryRun=true", json=job())).headers


async def test_a_made_cluster_or_key_says_where_it_is_and_its_secret_is_not_stored_on_its_way(service: Service) -> None:
    http = service.http
    joined = await http.post("/v1/clusters/west/join", json={"name": "west"})
    assert (joined.status_code, joined.headers["location"]) == (201, "/v1/clusters/west")
    assert (await http.get(joined.headers["location"])).json()["name"] == "west"
    rotated = await http.post("/v1/clusters/west/rotate", json={})
    made = await http.post("/v1/keys", json={"name": "one", "role": "admin"})
    for answer, key in ((rotated, rotated.json()["key"]), (made, made.json())):
        assert (answer.status_code, answer.headers["location"]) == (201, f"/v1/keys/{key['id']}")
        assert answer.headers["cache-control"] == joined.headers["cache-control"] == "no-store"
        assert (await http.delete(answer.headers["location"])).status_code == 204


async def test_an_unexpected_error_has_the_id_of_its_request_in_the_answer_and_in_the_log(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("a test's")

    monkeypatch.setattr(job_queries, "list_audit", fail)
    caplog.handler.addFilter(about := AboutFilter())
    try:
        answer = await service.http.get("/v1/audit", headers={"X-Request-Id": "one-of-a-test"})
    finally:
        caplog.handler.removeFilter(about)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (500, "internal")
    assert problem["detail"] == "the dispatcher had an unexpected error; its log has it under this requestId"
    assert problem["requestId"] == answer.headers["x-request-id"] == "one-of-a-test"
    (line,) = [one for one in caplog.records if one.getMessage() == "unexpected error"]
    assert line.__dict__["request_id"] == "one-of-a-test"
    assert line.exc_info is not None
    assert "a test's" in str(line.exc_info[1])


@pytest.mark.parametrize("path", ["/v1/jobs/", "/healthz/", "/v1/clusters/"])
async def test_no_address_is_redirected_to_where_the_caller_says(service: Service, path: str) -> None:
    answer = await service.http.get(path, headers={"Host": "evil.example"})
    assert answer.status_code == 404
    assert "location" not in answer.headers
    assert "evil" not in answer.text


async def test_a_new_key_is_not_to_be_stored_on_its_way(service: Service) -> None:
    answer = await service.http.post("/v1/keys", json={"name": "one", "role": "admin"})
    assert answer.status_code == 201
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("page", ["/docs", "/redoc"])
async def test_the_reference_for_people_loads_everything_from_the_api(service: Service, page: str) -> None:
    answer = await service.http.get(page)
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert not re.search(r"<script(?![^>]*src=)|\son\w+=", answer.text), "no script is inline"
    assert not re.search(r"(?:src|href)=[\"']?(?![\"'/])", answer.text), "nothing is loaded from another host"
    for address in re.findall(r"(?:src|href)=[\"']?(/[^\"'> ]+)", answer.text):
        loaded = await service.http.get(address)
        assert loaded.status_code == 200, address
        assert loaded.content
    other = await service.http.get("/docs/files/../../app.py")
    assert other.status_code == 404


async def test_the_document_says_how_to_authenticate_and_what_a_problem_is(service: Service) -> None:
    document = (await service.http.get("/openapi.json")).json()
    assert document["components"]["securitySchemes"]["apiKey"]["scheme"] == "bearer"
    assert document["security"] == [{"apiKey": []}]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for status in ("401", "403", "408", "422", "429", "431", "500", "503"):
                assert "application/problem+json" in operation["responses"][status]["content"], (method, path, status)
    assert "too-many-requests" in document["components"]["schemas"]["Problem"]["properties"]["code"]["enum"]


async def test_errors_quote_a_bounded_part_of_what_was_sent(service: Service) -> None:
    long = "x" * 140_000
    wrong = (
        await service.http.post("/v1/jobs", json=job(queue=long)),
        await service.http.post("/v1/jobs", json=job() | {long: 1}),
        await service.http.post("/v1/jobs", json=job() | {f"{long}{n}": 1 for n in range(20)}),
        await service.http.post("/v1/jobs", json={"job": job(), "parameters": [{long: "1"}]}),
        await service.http.post("/v1/jobs/cancel", json={"filter": {"queue": long, "state": [long]}}),
        await service.http.put("/v1/queues/a", json={"path": long}),
        await service.http.get("/v1/jobs", params={"label": long[:50_000]}),
        await service.http.get("/v1/jobs", params={"cursor": long[:50_000]}),
        await service.http.get(f"/v1/jobs/{long[:50_000]}"),
    )
    for answer in wrong:
        assert 400 <= answer.status_code < 500, answer.text[:300]
        assert len(answer.content) < 20_000, answer.text[:300]


async def test_the_access_log_says_who_called_from_where(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    secret = await make_key(service, "user", queues=["default"])
    key = (await service.http.get("/v1/keys")).json()["keys"][-1]
    with caplog.at_level(logging.INFO, "trainmaster.access"):
        async with service.as_key(secret) as user:
            await user.get("/v1/jobs")
            await user.get("/v1/jobs/" + "x" * 3_000)
    by_path = {record.getMessage().split(" ")[1]: record.__dict__ for record in caplog.records}
    line = by_path["/v1/jobs"]
    assert (line["client"], line["key_id"], line["key"]) == ("127.0.0.1", key["id"], key["name"])
    assert max(map(len, by_path)) <= 500
    assert secret not in caplog.text


async def test_a_query_parameter_that_a_call_does_not_have_is_a_mistake(service: Service) -> None:
    before = await picture(service.stores)
    for method, path, body in (
        ("POST", "/v1/jobs?dryrun=true", job()),  # with another name it would submit
        ("GET", "/v1/jobs?states=queued", None),  # it would list jobs of all states
        ("DELETE", "/v1/clusters/private?forced=1", None),
        ("GET", "/v1/priority-classes?limit=1", None),
        ("GET", f"/v1/jobs?{'x' * 5_000}=1", None),
    ):
        answer = await service.http.request(method, path, json=body)
        assert answer.status_code == 422, (path, answer.text)
        problem = answer.json()
        name = path.partition("?")[2].partition("=")[0]
        assert problem["code"] == "invalid-parameter"
        assert problem["mistakes"][0]["path"].rstrip(".") == name[:40]
        assert len(answer.content) < 1_000
    assert "it has dryRun" in (await service.http.post("/v1/jobs?dryrun=true", json=job())).json()["detail"]
    assert "it has none" in (await service.http.get("/v1/priority-classes?limit=1")).json()["detail"]
    assert await picture(service.stores) == before
    assert (await service.http.post("/v1/jobs?dryRun=true", json=job())).status_code == 200


@pytest.mark.parametrize("method", ["GET", "PATCH"])
async def test_an_action_on_many_jobs_is_no_job(service: Service, method: str) -> None:
    answer = await service.http.request(method, "/v1/jobs/cancel", json={})
    assert (answer.status_code, answer.headers["allow"]) == (405, "OPTIONS, POST")
    assert answer.json()["detail"] == f"/v1/jobs/cancel does not take {method}; it takes OPTIONS, POST"


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"", "the body is empty; this call takes JSON"),
        (b" \n", "the body is empty; this call takes JSON"),
        (b'{"a":\n 1,}', "the body is not JSON: line 2, column 3: trailing comma is not allowed"),
        (b"name: x", "the body is not JSON: line 1, column 1: invalid literal, expected 'null'"),
    ],
)
async def test_a_body_that_is_not_json_is_answered_with_its_place(service: Service, body: bytes, detail: str) -> None:
    for method, path in (("POST", "/v1/jobs"), ("PUT", "/v1/queues/research"), ("PATCH", "/v1/queues/default")):
        answer = await service.http.request(method, path, content=body)
        assert (answer.status_code, answer.json()["code"], answer.json()["detail"]) == (400, "malformed-body", detail)


@pytest.mark.parametrize("method", ["GET", "PATCH", "DELETE"])
async def test_a_mistyped_name_of_a_declared_object_is_answered_with_the_nearest(service: Service, method: str) -> None:
    for path, name in (("queues/defalt", "queue 'default'"), ("priority-classes/nrmal", "priority class 'normal'")):
        answer = await service.http.request(method, f"/v1/{path}", json={} if method == "PATCH" else None)
        kind, nearest = name.rsplit(" ", 1)
        assert answer.status_code == 404, answer.text
        assert answer.json()["detail"] == f"there is no {kind} {path.split('/')[1]!r}; did you mean {nearest}?"
    word, name = ("Queue", "defalt")
    history = await service.http.get("/v1/history", params={"kind": word, "name": name})
    assert history.json()["detail"].endswith("did you mean 'default'?")


async def test_a_parameter_with_a_nul_character_is_told_by_its_name(service: Service) -> None:
    job_id = await service.submit()
    for path in (
        "jobs?name=%00",
        "audit?actor=a%00",
        "events?name=x%00y",
        "history?kind=Queue&name=%00",
        f"jobs/{job_id}/logs?role=%00",
    ):
        answer = await service.http.get(f"/v1/{path}")
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid-parameter"), path
        name = path.rpartition("?")[2].rpartition("&")[2].partition("=")[0]
        (mistake,) = answer.json()["mistakes"]
        assert (mistake["path"], mistake["message"]) == (name, "has a NUL character, which no text may hold")


async def test_a_time_that_is_a_number_is_refused(service: Service) -> None:
    for time in ("1764316800", "1764316800000", "2026-11-28", "2026-11-28T00:00:00"):
        answer = await service.http.get("/v1/usage", params={"begin": time, "end": "2026-11-29T00:00:00Z"})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid-parameter"), time
        assert "T" in time or f"not {time!r}" in answer.json()["detail"]
    answer = await service.http.get(
        "/v1/usage", params={"begin": "2026-11-28T00:00:00Z", "end": "2026-11-29T00:00:00Z"}
    )
    assert answer.status_code == 200


async def test_dry_runs_refuse_an_idempotency_key_that_is_none(service: Service) -> None:
    key = {"Idempotency-Key": "x" * 201}
    for path, body in (
        ("/v1/jobs?dryRun=true", job()),
        ("/v1/jobs/cancel", {"filter": {"queue": "default"}, "dryRun": True}),
    ):
        answer = await service.http.post(path, json=body, headers=key)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid-parameter"), path
