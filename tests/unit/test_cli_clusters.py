"""The command line: the life of a cluster."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.unit.fake_api import Api, connected, run
from tests.unit.scripted import problem
from trainmaster.protocol.errors import Code
from trainmaster.protocol.states import Exit

KEY = {"id": 7, "name": "agent-berlin", "role": "agent", "key": "tmk_secret"}
HELM = "helm {} trainmaster-agent deploy/charts/agent --namespace trainmaster-agent {}"


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Api:
    return connected(monkeypatch, tmp_path)


def cluster(runs: int = 0, **fields: Any) -> dict[str, Any]:
    return {"name": "berlin", "state": "ready", "liveRuns": runs, **fields}


def test_pools_are_listed_with_what_keeps_them_from_growing(api: Api) -> None:
    quota = "in back-off after a scale-up that failed: QUOTA_EXCEEDED"
    pools = [
        {"name": "gpu", "count": 0, "free": {}, "most": 4, "nodes": 1, "blocked": quota},
        {"name": "cpu", "count": 2, "free": {}, "most": 9, "nodes": 7},
    ]
    api.on("GET /v1/clusters", {"clusters": [cluster(clusterKind="public", pools=pools, notCounted=["pools: x"])]})
    done = run("clusters")
    assert f"berlin: its pool gpu gets no more nodes now: {quota}" in done.stderr
    assert "not counted" not in done.stderr
    wide = run("clusters", "-o", "wide")
    assert "gpu 1/4, cpu 7/9" in wide.stdout
    assert "berlin: not counted: pools: x" in wide.stderr


def test_joining_prints_the_command_that_installs_the_agent(api: Api) -> None:
    api.on("POST /v1/clusters/berlin/join", {"cluster": "berlin", "created": True, "key": KEY})
    done = run("clusters", "join", "berlin", "--kind", "edge", "--label", "site=a", "--url", "https://tm.example.org/")
    assert done.stdout == (
        HELM.format("install", "--create-namespace")
        + " --set cluster=berlin --set url=https://tm.example.org --set joinToken=tmk_secret\n"
    )
    assert "cluster berlin was made; key 7 (agent-berlin): save it now" in done.stderr
    assert api.sent("POST /v1/clusters/berlin/join") == {
        "name": "berlin",
        "clusterKind": "edge",
        "labels": {"site": "a"},
    }


def test_joining_again_says_how_to_revoke_the_old_keys(api: Api) -> None:
    api.on("POST /v1/clusters/berlin/join", {"cluster": "berlin", "created": False, "key": KEY, "otherKeys": [3, 5]})
    done = run("clusters", "join", "berlin")
    assert "--set url=http://dispatcher.test --set" in done.stdout
    assert "trainmaster keys revoke 3" in done.stderr
    assert "trainmaster keys revoke 5" in done.stderr
    assert HELM.format("upgrade", "--reuse-values --set joinToken=KEY") in done.stderr
    data = json.loads(run("clusters", "join", "berlin", "-o", "json").stdout)
    assert (data["key"]["key"], data["otherKeys"], data["command"]) == ("tmk_secret", [3, 5], done.stdout.strip())


def test_an_address_that_pods_cannot_reach_is_warned_of_and_one_that_is_none_refused(api: Api) -> None:
    api.on("POST /v1/clusters/berlin/join", {"cluster": "berlin", "key": KEY})
    assert "which pods cannot reach" in run("clusters", "join", "berlin", "--url", "http://127.0.0.1:8000").stderr
    assert run("clusters", "join", "berlin", "--url", "tm.example.org").exit_code == Exit.USAGE
    assert run("clusters", "join", "Berlin").exit_code == Exit.BAD_REQUEST
    assert run("clusters", "join", "berlin", "--label", "x").exit_code == Exit.USAGE
    assert len(api.requests) == 1


def test_rotating_prints_the_command_that_gives_the_agent_its_new_key(api: Api) -> None:
    api.on("POST /v1/clusters/berlin/rotate", {"cluster": "berlin", "key": KEY, "revoked": [3]})
    done = run("clusters", "rotate", "berlin", "--revoke-old")
    assert done.stdout == HELM.format("upgrade", "--reuse-values --set joinToken=tmk_secret\n")
    assert "revoked: key 3" in done.stderr
    assert api.sent("POST /v1/clusters/berlin/rotate") == {"revokeOld": True}


def test_draining_says_what_was_stopped(api: Api) -> None:
    api.on("POST /v1/clusters/berlin/drain", {"name": "berlin", "stopped": 2, "liveRuns": 3})
    assert run("clusters", "drain", "berlin").stdout == "berlin  draining: 2 runs asked to stop, 3 runs left\n"
    assert api.sent("POST /v1/clusters/berlin/drain") == {"letFinish": False}
    api.on("POST /v1/clusters/berlin/drain", {"name": "berlin", "stopped": 0, "liveRuns": 0})
    assert run("clusters", "drain", "berlin", "--let-finish").stdout == "berlin  drained\n"
    assert api.sent("POST /v1/clusters/berlin/drain") == {"letFinish": True}


def test_a_drain_is_watched_to_its_end(api: Api) -> None:
    left = iter([3, 3, 1, 0])

    def look(_request: httpx.Request) -> httpx.Response:
        runs = next(left)
        return httpx.Response(200, json=cluster(runs, state="draining", stoppingRuns=runs))

    api.on("POST /v1/clusters/berlin/drain", {"name": "berlin", "stopped": 3, "liveRuns": 3})
    api.on("GET /v1/clusters/berlin", look)
    done = run("clusters", "drain", "berlin", "--wait")
    assert (done.exit_code, done.stdout) == (0, "berlin  drained\n")
    assert done.stderr.splitlines() == [
        "berlin: 3 runs left, 3 stopping",
        "berlin: 1 run left, 1 stopping",
        "berlin: 0 runs left",
    ]


def test_a_drain_that_takes_longer_than_one_waits_has_an_exit_code_of_its_own(api: Api) -> None:
    api.on("POST /v1/clusters/berlin/drain", {"name": "berlin", "stopped": 1, "liveRuns": 1, "reachable": False})
    api.on("GET /v1/clusters/berlin", cluster(1, state="unreachable"))
    done = run("clusters", "drain", "berlin", "--wait", "--timeout", "5s")
    assert done.exit_code == Exit.NOT_FINISHED
    assert 5 <= api.now < 6
    assert "trainmaster clusters declare-lost berlin" in done.stderr
    assert run("clusters", "drain", "berlin", "--timeout", "5s").exit_code == Exit.USAGE
    assert run("clusters", "drain", "berlin", "--wait", "--timeout", "soon").exit_code == Exit.USAGE


@pytest.mark.parametrize(
    ("words", "says", "code", "acted"),
    [(("--yes",), None, 0, True), ((), "y\n", 0, True), ((), "n\n", 0, False), ((), "", Exit.USAGE, False)],
)
def test_declaring_a_cluster_lost_asks_first(
    api: Api, words: tuple[str, ...], says: str | None, code: int, acted: bool
) -> None:
    api.on("GET /v1/clusters/berlin", cluster(4, state="unreachable"))
    api.on("POST /v1/clusters/berlin/declare-lost", {"name": "berlin", "lost": 4})
    done = run("clusters", "declare-lost", "berlin", *words, says=says)
    assert done.exit_code == code
    assert ("berlin  declared lost: 4 runs" in done.stdout) is acted
    assert ("POST /v1/clusters/berlin/declare-lost" in api.calls()) is acted
    if says is not None:
        assert "are you sure that nothing of berlin runs any more? 4 runs will be lost" in done.stderr


def test_a_cluster_in_contact_is_a_conflict(api: Api) -> None:
    api.on("GET /v1/clusters/berlin", cluster(4))
    api.on("POST /v1/clusters/berlin/declare-lost", problem(Code.CLUSTER_IN_CONTACT, "the agent is in contact"))
    assert run("clusters", "declare-lost", "berlin", "--yes").exit_code == Exit.CONFLICT
    api.on("POST /v1/clusters/berlin/declare-lost", {"name": "berlin", "lost": 4})
    assert run("clusters", "declare-lost", "berlin", "--yes", "--force").exit_code == 0
    assert api.sent("POST /v1/clusters/berlin/declare-lost") == {"force": True}


def test_removing_says_how_the_agent_is_uninstalled(api: Api) -> None:
    api.on("GET /v1/clusters/berlin", cluster(2))
    api.on("DELETE /v1/clusters/berlin", httpx.Response(204))
    done = run("clusters", "remove", "berlin", "--yes")
    assert done.stdout == "berlin  removed\n"
    assert "helm uninstall trainmaster-agent --namespace trainmaster-agent" in done.stderr
    assert api.requests[-1].url.query == b""
    done = run("clusters", "remove", "berlin", "--force", says="y\n")
    assert "2 runs will be lost and queued again" in done.stderr
    assert api.requests[-1].url.query == b"force=true"


def test_the_list_says_which_clusters_take_nothing_and_why(api: Api) -> None:
    listed = [
        cluster(3, state="draining", cordoned=True, draining=True, stoppingRuns=2) | {"name": "a"},
        cluster(state="drained", cordoned=True, draining=True) | {"name": "b"},
        cluster(state="unreachable", cordoned=True) | {"name": "c"},
        cluster(state="unreachable") | {"name": "d"},
        cluster(state="closed", closed="the API server does not answer") | {"name": "e"},
        cluster(state="cordoned", cordoned=True) | {"name": "f"},
    ]
    api.on("GET /v1/clusters", {"clusters": listed})
    done = run("clusters")
    for said in ("draining", "3 (2 stopping)", "drained", "unreachable (cordoned)", "closed", " cordoned "):
        assert said in done.stdout
    assert "e: its agent can start nothing there now: the API server does not answer" in done.stderr
