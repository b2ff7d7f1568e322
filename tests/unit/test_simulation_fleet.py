"""Fleets: what their documents may say, and where they come from."""

from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from pydantic import ValidationError
from typer.testing import CliRunner

from trainmaster.cli.fleet_file import read_fleet
from trainmaster.fake_cluster.cluster import FakeCluster
from trainmaster.fake_cluster.fleet import Fleet
from trainmaster.fake_cluster.generate import GPU, fleet_of_openb, make_fleet
from trainmaster.protocol.states import ClusterKind, Exit
from trainmaster.protocol.tenants import ClusterSpec, QueueSpec
from trainmaster.protocol.validation_errors import mistakes_of
from trainmaster_agent.cli.run import agent_app

ROOT = Path(__file__).parents[2]
SAMPLE = Path(__file__).with_name("openb_sample.csv")
GROUP = {"name": "cpu", "count": 1, "resources": {"cpu": "1"}}


def document(**fields: Any) -> dict[str, Any]:
    return {"clusters": [{"name": "a", "groups": [GROUP | fields.pop("group", {})], **fields}]}


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (document(colour="red"), "clusters[0].colour"),
        (document(group={"cuont": 3}), "clusters[0].groups[0].cuont"),
        (document(group={"resources": {"cpu": "lots"}}), "clusters[0].groups[0].resources.cpu"),
        (document(group={"foreign": [{"resources": {}, "lasts": "9s-1s"}]}), "clusters[0].groups[0].foreign[0].lasts"),
        (document(group={"provisioning": {"most": 0}}), "clusters[0].groups[0].provisioning.most"),
        (document(speed=0), "clusters[0].speed"),
        (document(key="k", keyFile="f"), "clusters[0]"),
        ({"clusters": document()["clusters"] * 2}, "clusters"),
        (
            {"clusters": [{"name": "a", "groups": [{**GROUP, "topology": {"zone": 1}}, {**GROUP, "name": "cpu-1"}]}]},
            "clusters[0].groups",
        ),
    ],
)
def test_mistakes_are_told_with_their_path(value: dict[str, Any], path: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Fleet.model_validate(value)
    assert path in [one.path for one in mistakes_of(caught.value)]


def test_the_example_is_a_fleet() -> None:
    fleet = Fleet.model_validate(yaml.safe_load((ROOT / "examples" / "fleet.yaml").read_text()))
    for cluster in fleet.clusters:
        assert FakeCluster(cluster, 0.0).report().groups


def test_a_made_fleet_is_the_same_for_the_same_seed_and_has_its_mix() -> None:
    fleet = make_fleet(20, 100, seed=3)
    assert fleet == make_fleet(20, 100, seed=3)
    assert fleet != make_fleet(20, 100, seed=4)
    kinds = [cluster.kind for cluster in fleet.clusters]
    assert {kind: kinds.count(kind) for kind in ClusterKind} == {
        ClusterKind.PRIVATE: 12,
        ClusterKind.PUBLIC: 6,
        ClusterKind.EDGE: 2,
    }
    assert {sum(group.count for group in cluster.groups) for cluster in fleet.clusters} == {100, 10}


def count_of(fleet: Fleet, resource: str) -> int:
    return sum(group.count * group.amounts.get(resource, 0) for group in fleet.clusters[0].groups)


def test_a_node_list_becomes_a_cluster() -> None:
    with SAMPLE.open() as lines:
        fleet = fleet_of_openb(lines)
    assert [(group.name, group.count) for group in fleet.clusters[0].groups] == [
        ("32c-256g", 2),
        ("g2x8-96c-384g", 2),
        ("t4x2-104c-512g", 1),
    ]
    assert (count_of(fleet, "cpu"), count_of(fleet, GPU)) == (360_000, 18)


def test_the_whole_published_node_list_becomes_a_cluster(shared: Path) -> None:
    lines = (shared / "data" / "openb_node_list_all_node.csv").read_text().splitlines()
    fleet = fleet_of_openb(lines)
    rows = [line.split(",") for line in lines[1:]]
    assert sum(group.count for group in fleet.clusters[0].groups) == len(rows) == 1523
    assert count_of(fleet, "cpu") == sum(int(row[1]) for row in rows)
    assert count_of(fleet, "memory") == sum(int(row[2]) for row in rows) * 2**20
    assert count_of(fleet, GPU) == sum(int(row[3]) for row in rows)


@pytest.mark.parametrize(
    "lines",
    [[], ["sn,cpu_milli,memory_mib,gpu,model", "n,many,1,0,"], ["a,b", "1,2"]],
    ids=["empty", "word", "columns"],
)
def test_what_is_no_node_list_is_refused(lines: list[str]) -> None:
    with pytest.raises(ValueError, match=r"no nodes|line 2"):
        fleet_of_openb(lines)


# The command


def run(*arguments: str) -> str:
    done = CliRunner().invoke(agent_app, ["fleet", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_command_writes_a_fleet_and_what_declares_it() -> None:
    arguments = ("--clusters", "5", "--nodes", "40", "--seed", "7", "--mix", "public=1,edge=4")
    fleet = Fleet.model_validate(yaml.safe_load(run(*arguments)))
    documents = list(yaml.safe_load_all(run(*arguments, "--tenants")))
    queues = [QueueSpec.model_validate(one) for one in documents if one["kind"] == "Queue"]
    clusters = [ClusterSpec.model_validate(one) for one in documents if one["kind"] == "Cluster"]
    assert [(one.name, one.cluster_kind, one.region) for one in clusters] == [
        (one.name, one.kind, one.region) for one in fleet.clusters
    ]
    assert len(queues) == 1
    assert len(documents) == 6


def test_the_command_reads_a_node_list() -> None:
    assert Fleet.model_validate(yaml.safe_load(run("--openb", str(SAMPLE)))).clusters[0].name == "openb"


@pytest.mark.parametrize("arguments", [("--mix", "private"), ("--mix", "private=0"), ("--openb", "/no/such/file")])
def test_the_command_says_what_it_cannot_use(arguments: tuple[str, ...]) -> None:
    done = CliRunner().invoke(agent_app, ["fleet", *arguments])
    assert done.exit_code == Exit.USAGE
    assert ("mix" if arguments[0] == "--mix" else arguments[1]) in done.output


def test_a_fleet_file_with_mistakes_is_refused_with_their_paths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(yaml.safe_dump(document(colour="red", speed=0)))
    with pytest.raises(typer.Exit) as caught:
        read_fleet(file)
    assert caught.value.exit_code == Exit.USAGE
    errors = capsys.readouterr().err
    assert "clusters[0].colour: this field is not known" in errors
    assert "clusters[0].speed" in errors
