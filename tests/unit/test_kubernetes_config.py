"""The agent's configuration on Kubernetes: which namespace a queue maps to, and what the command line says of mistakes."""

from pathlib import Path

import pytest
import typer
from pydantic import ValidationError
from typer.testing import CliRunner

from trainmaster.agent.runtime.kubernetes.config import KubernetesCluster
from trainmaster.cli.main import Commands
from trainmaster.cli.processes import register

app = typer.Typer(cls=Commands, rich_markup_mode=None, pretty_exceptions_enable=False)
register(app)
KEY = {"TRAINMASTER_URL": "http://127.0.0.1:1", "TRAINMASTER_API_KEY": "tmk_x"}
RULES = [
    {"queue": "research", "namespace": "research"},
    {"queue": "research/vision", "namespace": "jobs-{last}"},
    {"queue": "teams", "namespace": "{queue}"},
]


def config(**fields: object) -> KubernetesCluster:
    return KubernetesCluster.model_validate({"cluster": "east", **fields})


@pytest.mark.parametrize(
    ("queue", "namespace"),
    [
        ("other", "trainmaster-jobs"),
        ("research", "research"),
        ("research/nlp", "research"),
        ("researchers", "trainmaster-jobs"),
        ("research/vision", "jobs-vision"),
        ("research/vision/tiny", "jobs-tiny"),
        ("teams/a/b", "teams-a-b"),
    ],
)
def test_the_rule_of_the_longest_path_says_where_a_queues_runs_are(queue: str, namespace: str) -> None:
    assert config(namespaces=RULES, jobNamespaces=["trainmaster-jobs"]).namespace_of(queue) == namespace


def test_namespaces_that_are_named_in_full_need_no_list() -> None:
    assert config(namespaces=RULES[:1]).job_namespaces == ("trainmaster-jobs", "research")


def test_rules_that_fill_in_names_need_a_list() -> None:
    with pytest.raises(ValidationError, match="jobNamespaces lists all namespaces"):
        config(namespaces=RULES)


def test_the_policy_of_the_longest_path_holds_for_a_queue() -> None:
    admissions = [{"queue": "research", "policy": {"level": "baseline"}}]
    found = config(admissions=admissions)
    assert (found.policy_of("research/nlp").level, found.policy_of("other").level) == ("baseline", "restricted")


MISTAKES = {
    "a field that does not exist": ("cluster: east\nnodes: 3\n", "nodes: Extra inputs are not permitted"),
    "no cluster": ("namespace: x\n", "cluster: Field required"),
    "a lease that is too short": (
        "cluster: east\nlease: {duration: 1s}\n",
        "lease.duration: Value error, the lease lasts",
    ),
    "no document": ("", "the document: Input should be a valid dictionary"),
    "no YAML": ("cluster: [", "while parsing a flow node"),
}


@pytest.mark.parametrize(("text", "words"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_in_the_file_ends_the_command_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(text)
    result = CliRunner().invoke(app, ["agent", "run", "--kubernetes", str(path)], env=KEY)
    assert result.exit_code == 2
    assert words in result.output.replace("\n", " ")
    assert "Traceback" not in result.output


def test_a_kubeconfig_that_is_not_there_is_told(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("cluster: east\n")
    words = ["agent", "run", "--kubernetes", str(path), "--kubeconfig", str(tmp_path / "none")]
    result = CliRunner().invoke(app, words, env=KEY)
    assert result.exit_code == 2
    assert "no access to an API server" in result.output


def test_only_one_sort_of_cluster_is_run_at_a_time(tmp_path: Path) -> None:
    words = ["agent", "run", "--kubernetes", "a.yaml", "--simulated", "b.yaml"]
    result = CliRunner().invoke(app, words, env=KEY)
    assert (result.exit_code, "only one of" in result.output) == (2, True)


def test_a_key_is_needed(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["agent", "run", "--kubernetes", "a.yaml"], env={"TRAINMASTER_URL": "http://x"})
    assert (result.exit_code, "--key-file" in result.output) == (2, True)
