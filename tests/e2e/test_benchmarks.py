"""Benchmarks with little load: what they measure is there, and what they count is right."""

from pathlib import Path

import pytest

from bench import array, fragmentation, gangs, informers, labels, packs, streams
from tests.cluster.control_plane import assets

_NEEDS_CONTROL_PLANE = pytest.mark.skipif(assets() is None, reason="KUBEBUILDER_ASSETS has no control plane")
_API_SERVICE = "/registry/apiregistration.k8s.io/apiservices/v1.trainmaster.dev"
_SERVICE = "/registry/services/specs/default/trainmaster-api"
"""The Service by which the API server reaches the dispatcher's API."""


@pytest.mark.deep
def test_informers_have_what_the_store_has_after_a_restart_of_their_api(tmp_path: Path) -> None:
    words = ["--seconds", "6", "--rate", "200", "--restart-seconds", "3", "--jobs", "200"]
    found = informers.run(tmp_path, informers.parser().parse_args(words))
    assert not informers.is_wrong(found), found
    assert found["kills"] > 0
    assert found["deleted"] > 0
    assert found["listed_by_hand"]["stored"] == 200 + found["made"] - found["deleted"]
    assert found["python"]["cached"] == found["listed_by_hand"]["stored"] + 1, "all jobs and the queue"


@pytest.mark.deep
@pytest.mark.parametrize("hub", [False, pytest.param(True, marks=_NEEDS_CONTROL_PLANE)], ids=["alone", "hub"])
def test_lists_by_labels_have_as_many_jobs_as_match(tmp_path: Path, hub: bool) -> None:
    """The benchmark itself compares pages, all pages and what kubectl prints with what the labels of all jobs say."""
    words = ["--jobs", "2000", "--requests", "1", *["--hub"] * hub]
    found = labels.run(tmp_path, labels.parser().parse_args(words))
    matched = {one["selector"]: one["matched"] for name, one in found["pages"].items() if "in_namespace" not in name}
    assert len(matched) == len(labels.SELECTORS)
    assert matched["sweep=s17"] == matched["pair=p7,!late"] == matched["team=t3,color=c4"] == 100
    assert matched["team=t3"] == 200
    assert matched["team=t3,color=c5"] == 0
    if hub:
        etcd = found["hub"]["etcd"]
        assert set(etcd["ours"]) == {_API_SERVICE, _SERVICE}
        assert etcd["keys"][0] == etcd["keys"][1]
        assert not [one for one in etcd["written_meanwhile"] if "lease" not in one]


@pytest.mark.deep
def test_no_element_of_an_array_is_lost() -> None:
    found = packs.run(packs.parser().parse_args(["--elements", "300", "--members", "2", "--alone", "3"]))
    assert not packs.is_wrong(found), found
    assert found["kinds"]["call"]["overhead"]["max_seconds"] > 0
    assert found["alone"]["jobs"] == 3


@pytest.mark.deep
def test_streams_of_all_kinds_pass_at_once() -> None:
    words = ["--sessions", "20", "--seconds", "1", "--echoes", "2", "--rounds", "1", "--rate", "10"]
    found = streams.run(streams.parser().parse_args(words))
    assert not streams.is_wrong(found), found
    assert (found["terminals"], found["bulk"], found["pages"]) == (10, 7, 3)
    (parts,) = found["rounds"]
    assert parts["quiet"]["mb_per_second"] < parts["all"]["of_kinds"]["bulk"]
    assert parts["all"]["of_kinds"]["pages"] > 0
    assert 0 < parts["steady"]["mb_per_second"] < 15
    for name in ("terminals", "steady", "all", "slow_reader"):
        assert all(one["p50"] > 0 for one in parts[name]["echo_ms"].values()), parts[name]
    assert parts["all"]["rss_mib"]["agent"] > 0


def test_a_large_array_takes_few_bytes_for_each_element() -> None:
    found = array.run(
        array.parser().parse_args(["--elements", "100000", "--run", "500", "--jobs", "20", "--calls", "2"])
    )
    assert not found["waiting"]["is_wrong"], found
    assert not found["run"]["is_wrong"], found
    assert found["waiting"]["stored_bytes"] < 10_000
    assert found["waiting"]["stored_bytes_with_every_second_cancelled"] < 100_000


@_NEEDS_CONTROL_PLANE
async def test_gangs_are_bound_with_the_runtime_and_by_bare_requests(tmp_path: Path) -> None:
    words = ["--schedulers", "native,gates", "--members", "10", "--gangs", "4", "--size", "3", "--rounds", "1"]
    found = await gangs.measure(tmp_path, gangs.parser().parse_args(words))
    assert found["left_out"] == []
    for one in found["schedulers"].values():
        for load in (one["one_gang"], one["many_gangs"]):
            assert 0 < load["bare_all_bound_seconds"] < 60
            assert 0 < load["all_bound_seconds"] <= load["all_running_seconds"]


@_NEEDS_CONTROL_PLANE
async def test_planned_nodes_keep_whole_nodes_free(tmp_path: Path) -> None:
    words = ["--schedulers", "native", "--gangs", "12", "--load", "0.3"]
    found = await fragmentation.measure(tmp_path, fragmentation.parser().parse_args(words))
    off, on = found["schedulers"]["native"]["off"], found["schedulers"]["native"]["on"]
    assert (on["gangs"], on["not_planned"], on["not_placed"], on["as_planned"]) == (12, 0, 0, 1.0)
    assert on["free_nodes_mean"] > off["free_nodes_mean"]
    assert on["free_nodes_mean"] <= on["free_nodes_possible_mean"]
