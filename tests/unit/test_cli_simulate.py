"""The command line: what a fleet would do with a workload."""

import csv
import gzip
import json
from pathlib import Path

import pytest
import yaml

from tests.unit.fake_api import run
from tests.unit.whatif_building import SHORTER_THAN_ITS_LIMIT
from trainmaster.protocol.states import Exit

FLEET = {"clusters": [{"name": "own", "groups": [{"name": "nodes", "count": 2, "resources": {"cpu": "2"}}]}]}
TENANTS = """
kind: Queue
path: main
---
kind: PriceBook
name: book
onDemand: {cpu: 3.6}
---
kind: Cluster
name: own
priceBook: book
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(FLEET))
    (tmp_path / "tenants.yaml").write_text(TENANTS)
    (tmp_path / "jobs.csv").write_text("submit,run,members,cpu\n0,100,2,2\n0s,1m,1,2\n")
    return tmp_path


def test_waits_use_and_cost_are_shown(files: Path) -> None:
    done = run("simulate", "jobs.csv", "--fleet", "fleet.yaml", "-f", "tenants.yaml")
    assert done.exit_code == 0, done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[0] == "2 jobs of jobs.csv: 2 succeeded; over after 2m40s"
    assert lines[1] == "0 preempted; fairness between queues 1.000; cost 0.52"
    assert "all 2 50s 50s 1m35s 1m40s 1.83" in lines
    assert "own private 2 81.2% 0.52" in lines


def test_programs_get_json_and_a_line_for_each_job(files: Path) -> None:
    with gzip.open("jobs.csv.gz", "wt") as out:
        out.write(Path("jobs.csv").read_text())
    data = json.loads(run("simulate", "jobs.csv.gz", "--fleet", "fleet.yaml", "-o", "json").stdout)
    assert (data["jobs"], data["waits"]["meanSeconds"], data["cost"]) == (2, 50.0, 0)
    rows = list(csv.DictReader(run("simulate", "jobs.csv", "--fleet", "fleet.yaml", "-o", "csv").stdout.splitlines()))
    assert [(row["start"], row["end"], row["wait"], row["state"], row["cluster"]) for row in rows] == [
        ("0", "100", "0", "succeeded", "own"),
        ("100", "160", "100", "succeeded", "own"),
    ]


def test_predictions_are_used_unless_they_are_turned_off(files: Path) -> None:
    (files / "jobs.csv").write_text(SHORTER_THAN_ITS_LIMIT)

    def starts(*words: str) -> list[str]:
        done = run("simulate", "jobs.csv", "--fleet", "fleet.yaml", "-o", "csv", *words)
        return [row["start"] for row in csv.DictReader(done.stdout.splitlines())]

    assert starts() == ["0", "20", "100", "300", "120"]
    assert starts("--no-predictions") == ["0", "20", "100", "300", "310"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["none.csv", "--fleet", "fleet.yaml"], Exit.USAGE, "none.csv"),
        (["fleet.yaml", "--fleet", "fleet.yaml"], Exit.USAGE, "a workload is a .swf or a .csv file"),
        (["empty.csv", "--fleet", "fleet.yaml"], Exit.BAD_REQUEST, "has no job that ran and ended"),
        (["bad.csv", "--fleet", "fleet.yaml"], Exit.BAD_REQUEST, "bad.csv: line 3"),
        (["jobs.csv", "--fleet", "none.yaml"], Exit.USAGE, "none.yaml"),
        (["jobs.csv", "--fleet", "fleet.yaml", "--queue", "other"], Exit.BAD_REQUEST, "there is no queue 'other'"),
    ],
)
def test_what_cannot_be_simulated_is_said(files: Path, words: list[str], code: Exit, said: str) -> None:
    (files / "empty.csv").write_text("submit,run\n")
    (files / "bad.csv").write_text("submit,run\n0,1\n0,soon\n")
    done = run("simulate", *words)
    assert said in done.stderr
    assert done.exit_code == code


CLOUD = """
{kind: Queue, path: main, allowedKinds: [private, public]}
---
{kind: PriceBook, name: book, onDemand: {cpu: 1}}
---
{kind: Cluster, name: cloud, clusterKind: public, priceBook: book}
---
kind: BurstPolicy
name: overflow
queues: [main]
when: {after: 0s}
budget: {day: 100}
timeLimit: 1h
"""
SWEPT = """
kind: Queue
path: main
limits: {cpu: @CORES@}
"""


def test_values_are_compared_side_by_side_and_in_a_report(files: Path) -> None:
    (files / "swept.yaml").write_text(SWEPT)
    words = ["simulate", "jobs.csv", "--fleet", "fleet.yaml", "-f", "swept.yaml", "--sweep", "CORES=2,4"]
    done = run(*words, "--html", "report.html")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[2:] == [
        "WAIT MEAN P95 SLOWDOWN NEVER PREEMPTED JOBS ON OWN COST",
        "CORES=2 0s 0s 1.00 1 0 1 0.00",
        "CORES=4 50s 1m35s 1.83 0 0 2 0.00",
    ]
    data = json.loads(run(*words, "-o", "json").stdout)
    assert [(case["name"], case["waits"]["started"]) for case in data["cases"]] == [("CORES=2", 1), ("CORES=4", 2)]
    assert "CORES=4" in (files / "report.html").read_text()


def test_cases_are_compared_each_with_its_files_on_top_of_the_others(files: Path) -> None:
    for cores in (2, 4):
        (files / f"{cores}.yaml").write_text(SWEPT.replace("@CORES@", str(cores)))
    words = ["simulate", "jobs.csv", "--fleet", "fleet.yaml", "-f", "2.yaml"]
    done = run(*words, "--case", "today=", "--case", "more=4.yaml", "-o", "json")
    data = json.loads(done.stdout)
    assert [(case["name"], case["waits"]["started"]) for case in data["cases"]] == [("today", 1), ("more", 2)]


def test_a_workload_that_is_not_there_is_said_in_words(files: Path) -> None:
    done = run("simulate", "gone.csv", "--fleet", "fleet.yaml")
    assert (done.exit_code, done.stderr) == (Exit.USAGE, "error: gone.csv: No such file or directory\n")


def test_a_policy_without_a_public_cluster_is_warned_of_once(files: Path) -> None:
    warning = "warning: the fleet has no public cluster, so that no burst policy can send a job anywhere"
    (files / "policy.yaml").write_text("---".join(CLOUD.split("---")[0::3]))
    words = ["simulate", "jobs.csv", "--fleet", "fleet.yaml", "-f", "policy.yaml", "--sweep", "burst.after=none,0s"]
    done = run(*words)
    assert (done.exit_code, done.stderr.count(warning)) == (0, 1), done.stderr
    (files / "queue.yaml").write_text(CLOUD.split("---")[0])
    assert warning not in run("simulate", "jobs.csv", "--fleet", "fleet.yaml", "-f", "queue.yaml").stderr
    private = FLEET["clusters"][0]["name"]
    (files / "public.yaml").write_text(f"{{kind: Cluster, name: {private}, clusterKind: public}}")
    assert warning not in run(*words, "-f", "public.yaml").stderr


def test_runs_that_policies_sent_are_told(files: Path) -> None:
    (files / "cloud.yaml").write_text(CLOUD)
    (files / "both.yaml").write_text(
        yaml.safe_dump(
            {**FLEET, "clusters": [*FLEET["clusters"], {**FLEET["clusters"][0], "name": "cloud", "kind": "public"}]}
        )
    )
    words = ["simulate", "jobs.csv", "--fleet", "both.yaml", "-f", "cloud.yaml"]
    done = run(*words, "--html", "one.html")
    assert "sent to public clusters: 1 runs by overflow" in done.stdout, done.stdout + done.stderr
    assert "; 1 runs to public clusters by overflow" in (files / "one.html").read_text()
    done = run(*words, "--sweep", "burst.after=none,0s", "--html", "two.html")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[2][lines[2].index("PREEMPTED") :][:2] == ["PREEMPTED", "BURST"]
    assert "sent to public clusters" in (files / "two.html").read_text()


def test_a_setting_replaces_its_place_in_the_files(files: Path) -> None:
    (files / "swept.yaml").write_text(SWEPT)
    done = run("simulate", "jobs.csv", "--fleet", "fleet.yaml", "-f", "swept.yaml", "--set", "CORES=2", "-o", "json")
    assert json.loads(done.stdout)["ends"] == {"succeeded": 1, "waiting": 1}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sweep", "CORES"], "--sweep takes NAME=V1,V2,..., not 'CORES'"),
        (["--sweep", "CORES=1"], "--sweep replaces @CORES@ in the files of -f; give one"),
        (["-f", "tenants.yaml", "--sweep", "CORES=1"], "no file has @CORES@: tenants.yaml"),
        (["-f", "tenants.yaml", "--sweep", "CORES=1", "-o", "csv"], "--sweep compares figures"),
        (["--case", "today"], "--case takes NAME=FILE,FILE,..., not 'today'"),
        (["--case", "a=", "--case", "a="], "two cases have the same name"),
        (["--case", "a=", "--sweep", "CORES=1"], "give --case or --sweep, not both"),
        (["--case", "a=", "-o", "csv"], "--case compares figures"),
        (["--set", "burst.after=5m", "--background"], "--sweep burst.FIELD=VALUE sets a field of policies"),
        (["--html", "nowhere/report.html"], "nowhere/report.html"),
    ],
)
def test_what_cannot_be_compared_is_said(files: Path, words: list[str], said: str) -> None:
    done = run("simulate", "jobs.csv", "--fleet", "fleet.yaml", *words)
    assert said in done.stderr
    assert done.exit_code == Exit.USAGE
