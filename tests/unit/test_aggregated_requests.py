"""What a request asks for, who asks, and whether it comes from the API server: as Kubernetes itself reads it."""

from typing import Any

import pytest

from trainmaster_agent.aggregation.access_reviews import AccessReviews
from trainmaster_agent.aggregation.requests import Attributes, FrontProxy, User, attributes_of

GROUP = "/apis/trainmaster.dev/v1"
CONFIG = {
    "requestheader-client-ca-file": "PEM",
    "requestheader-allowed-names": '["front"]',
}
LISTS = {
    "requestheader-allowed-names": ["front"],
    "requestheader-username-headers": ["X-Remote-User", "X-Name"],
    "requestheader-group-headers": ["X-Remote-Group"],
    "requestheader-extra-headers-prefix": ["X-Remote-Extra-"],
}


@pytest.mark.parametrize(
    ("method", "path", "query", "expected"),
    [
        ("GET", "/jobs", {}, Attributes("list", "jobs")),
        ("GET", "/jobs", {"watch": "true"}, Attributes("watch", "jobs")),
        ("GET", "/jobs", {"watch": "0"}, Attributes("list", "jobs")),
        ("GET", "/namespaces/a/jobs", {}, Attributes("list", "jobs", "a")),
        ("GET", "/namespaces/a/jobs/x", {}, Attributes("get", "jobs", "a", "x")),
        ("GET", "/namespaces/a/jobs/x/status", {}, Attributes("get", "jobs", "a", "x", "status")),
        ("GET", "/namespaces/a/jobs", {"fieldSelector": "metadata.name=x"}, Attributes("list", "jobs", "a", "x")),
        ("GET", "/namespaces/a/jobs", {"fieldSelector": "metadata.name=x,a=b"}, Attributes("list", "jobs", "a")),
        ("POST", "/namespaces/a/jobs", {}, Attributes("create", "jobs", "a")),
        ("PUT", "/queues/x", {}, Attributes("update", "queues", "", "x")),
        ("PATCH", "/queues/x", {}, Attributes("patch", "queues", "", "x")),
        ("DELETE", "/queues/x", {}, Attributes("delete", "queues", "", "x")),
        ("DELETE", "/namespaces/a/jobs", {}, Attributes("deletecollection", "jobs", "a")),
        ("GET", "/namespaces/a%62/jobs/x%2Ey", {}, Attributes("get", "jobs", "ab", "x.y")),
        ("GET", "", {}, None),
        ("GET", "/", {}, None),
        ("GET", "/jobs/", {}, None),
        ("GET", "//jobs", {}, None),
        ("GET", "/namespaces/a/jobs/x/log/more", {}, None),
        ("GET", "/namespaces/a/jobs/%2e%2e", {}, None),
        ("GET", "/namespaces/a/jobs/..", {}, None),
        ("GET", "/namespaces/a%2Fjobs", {}, None),
        ("GET", "/namespaces/a/jobs/x%5Cy", {}, None),
    ],
)
def test_attributes_of_requests(method: str, path: str, query: dict[str, str], expected: Attributes | None) -> None:
    assert attributes_of(method, GROUP + path, query) == expected


@pytest.mark.parametrize("path", ["/v1/jobs", "/api/v1/pods", "/apis/batch/v1/jobs", "/apis/trainmaster.dev/v2/jobs"])
def test_other_addresses_are_none_of_the_group(path: str) -> None:
    assert attributes_of("GET", path, {}) is None


def test_refusals_are_in_the_words_of_an_api_server() -> None:
    one = Attributes("get", "jobs", "a", "x", "status")
    assert one.refusal("alice", "") == (
        'jobs.trainmaster.dev "x" is forbidden: User "alice" cannot get resource "jobs/status" in API group "trainmaster.dev" in the'
        ' namespace "a"'
    )
    assert Attributes("list", "queues").refusal("alice", "no rule").endswith("at the cluster scope: no rule")


def subject(*names: str) -> dict[str, Any]:
    return {"subject": ((("organizationName", "front"),), *((("commonName", name),) for name in names))}


def test_the_api_server_is_known_by_the_name_in_its_certificate() -> None:
    proxy = FrontProxy.read(CONFIG, LISTS)
    assert proxy.admits(subject("front"))
    assert not proxy.admits(subject("other"))
    assert not proxy.admits(subject())
    assert not proxy.admits({})
    assert not proxy.admits(None)
    anybody = FrontProxy.read(CONFIG, {})
    assert anybody.admits(subject("other"))
    assert not anybody.admits(None)
    with pytest.raises(KeyError, match="requestheader-client-ca-file"):
        FrontProxy.read({}, LISTS)


def test_users_are_read_from_the_headers_that_the_cluster_names() -> None:
    proxy = FrontProxy.read(CONFIG, LISTS)
    headers = [
        ("X-Remote-User", "alice"),
        ("x-remote-group", "a"),
        ("X-Remote-Group", "b"),
        ("X-Remote-Uid", "7"),
        ("X-Remote-Extra-Scopes", "s1"),
        ("X-Remote-Extra-Scopes", "s2"),
        ("X-Remote-Extra-Example.com%2Fteam", "t"),
        ("X-Group", "forged"),
    ]
    extra = (("example.com/team", ("t",)), ("scopes", ("s1", "s2")))
    assert proxy.user(headers) == User("alice", "7", ("a", "b"), extra)
    assert proxy.user([("X-Name", "bob")]) == User("bob")
    assert proxy.user([("X-Remote-Group", "a")]) is None
    assert proxy.user([("X-Remote-User", "")]) is None


class Reviewer:
    """An API server that allows what is done by one user, and counts how often it was asked."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []

    async def call(self, method: str, path: str, *, body: dict[str, Any]) -> dict[str, Any]:
        self.bodies.append(body["spec"])
        status = {"allowed": body["spec"]["user"] == "alice", "denied": body["spec"]["groups"] == ["never"]}
        return {"status": status | {"reason": "by a rule"}}


async def test_decisions_are_kept_for_ten_seconds_for_the_same_user_and_request() -> None:
    api, now = Reviewer(), [0.0]
    reviews = AccessReviews(api, lambda: now[0])  # type: ignore[arg-type] # it needs ``call`` alone
    one, other = Attributes("list", "jobs", "a"), Attributes("list", "jobs", "b")
    alice = User("alice", "7", ("g",), (("scopes", ("s",)),))
    assert await reviews.decide(alice, one) == (True, "by a rule")
    assert api.bodies == [
        {
            "user": "alice",
            "uid": "7",
            "groups": ["g"],
            "extra": {"scopes": ["s"]},
            "resourceAttributes": {
                "verb": "list",
                "group": "trainmaster.dev",
                "version": "v1",
                "resource": "jobs",
                "namespace": "a",
            },
        }
    ]
    now[0] = 9.9
    await reviews.decide(alice, one)
    assert len(api.bodies) == 1
    assert not (await reviews.decide(User("bob"), one)).is_allowed
    await reviews.decide(alice, other)
    await reviews.decide(User("alice", "7", ("g", "h")), one)
    assert len(api.bodies) == 4
    now[0] = 10.1
    await reviews.decide(alice, one)
    assert len(api.bodies) == 5
    assert not (await reviews.decide(User("alice", "", ("never",)), one)).is_allowed
