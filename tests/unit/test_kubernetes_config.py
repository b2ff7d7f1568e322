"""The agent's configuration on Kubernetes: which namespace a queue maps to, and what the command line says of mistakes."""

import re
from pathlib import Path

import pytest
import typer
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError
from typer.testing import CliRunner

from trainmaster.cli.main import Commands
from trainmaster_agent.cli import register
from trainmaster_agent.runtime.kubernetes.config import KubernetesCluster, fill

app = typer.Typer(cls=Commands, rich_markup_mode=None, pretty_exceptions_enable=False)
register(app)
KEY = {"TRAINMASTER_URL": "http://127.0.0.1:1", "TRAINMASTER_API_KEY": "tmk_x"}
parts = st.text("ab-_", min_size=1, max_size=5) | st.text("ab", min_size=40, max_size=60)
paths = st.lists(parts, min_size=1, max_size=3).map("/".join).filter(lambda path: len(path) <= 200)
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
        ("other", "trainmaster-jobs-other"),
        ("other/below/it", "trainmaster-jobs-other"),
        ("research", "research"),
        ("research/nlp", "research"),
        ("researchers", "trainmaster-jobs-researchers"),
        ("research/vision", "jobs-vision"),
        ("research/vision/tiny", "jobs-tiny"),
        ("teams/a/b", "teams-a-b--79b156799088"),
    ],
)
def test_the_rule_of_the_longest_path_says_where_a_queues_runs_are(queue: str, namespace: str) -> None:
    assert config(namespaces=RULES, jobNamespaces=["trainmaster-jobs"]).namespace_of(queue) == namespace


def test_namespaces_that_are_named_in_full_need_no_list() -> None:
    assert config(namespace="jobs", namespaces=RULES[:1]).job_namespaces == ("jobs", "research")


def test_without_a_word_there_is_the_namespace_of_the_default_queue() -> None:
    assert config().job_namespaces == ("trainmaster-jobs-default",)
    assert config(queues=["a", "b"]).job_namespaces == ("trainmaster-jobs-a", "trainmaster-jobs-b")
    assert config(jobNamespaces=["x"], queues=["a"]).job_namespaces == ("x", "trainmaster-jobs-a")
    assert config(jobNamespaces=["x"]).job_namespaces == ("x",)


def test_somewhere_runs_have_to_be_created() -> None:
    with pytest.raises(ValidationError, match="queues or jobNamespaces has to name"):
        config(queues=[])


@pytest.mark.parametrize("rule", ["trainmaster-jobs-{top}", "{queue}", "jobs-{queue}-x", "{last}"])
@given(one=paths, other=paths)
@example(one="a/b", other="a-b")
@example(one="a_b", other="a-b")
@example(one="_", other="-")
@example(one="a/b", other="a_b")
@example(one=f"{'a' * 60}/x", other=f"{'a' * 60}/y")
def test_different_fillings_give_different_namespaces(rule: str, one: str, other: str) -> None:
    def filling(path: str) -> str:
        parts = path.split("/")
        return parts[0] if "{top}" in rule else parts[-1] if "{last}" in rule else path

    names = [fill(rule, path) for path in (one, other)]
    assert (names[0] == names[1]) is (filling(one) == filling(other))
    for name in names:
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name), name


def test_a_name_that_looks_like_a_filling_of_another_queue_is_not_taken_for_it() -> None:
    taken = fill("{queue}", "a/b")
    assert taken.startswith("a-b--")
    assert fill("{queue}", taken) != taken


@pytest.mark.parametrize("rule", ["{top}{queue}", "-{top}", "{top}-", "UPPER", "{other}", f"{'x' * 40}{{top}}"])
def test_rules_that_give_no_names_are_refused(rule: str) -> None:
    with pytest.raises(ValidationError):
        config(namespace=rule)


def test_rules_that_fill_in_names_need_a_list() -> None:
    with pytest.raises(ValidationError, match="jobNamespaces lists all namespaces"):
        config(namespaces=RULES)


def test_the_policy_of_the_longest_path_holds_for_a_queue() -> None:
    admissions = [{"queue": "research", "policy": {"level": "baseline"}}]
    found = config(admissions=admissions)
    assert (found.policy_of("research/nlp").level, found.policy_of("other").level) == ("baseline", "restricted")


MISTAKES = {
    "a field that does not exist": ("cluster: east\nnodes: 3\n", "nodes: this field is not known"),
    "a price, which is declared at the dispatcher": (
        "cluster: east\npricePerHour: 3\n",
        "pricePerHour: this field is not known",
    ),
    "no cluster": ("namespace: x\n", "cluster: is missing"),
    "a lease that is too short": (
        "cluster: east\nlease: {duration: 1s}\n",
        "lease.duration: the lease lasts",
    ),
    "no document": ("", "cluster: is missing"),
    "no YAML": ("cluster: [", "line 1, column 11: a value is missing"),
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
    assert result.output.endswith(f"no access to a Kubernetes API server: {tmp_path / 'none'}: no such file\n")


@pytest.mark.parametrize("where", ["lease: {namespace: jobs}", "recordNamespace: jobs"])
def test_an_agent_whose_records_jobs_could_read_does_not_start(tmp_path: Path, where: str) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(f"cluster: east\nnamespace: jobs\n{where}\n")
    words = ["agent", "run", "--kubernetes", str(path), "--kubeconfig", str(tmp_path / "none")]
    result = CliRunner().invoke(app, words, env=KEY)
    assert result.exit_code == 2
    assert "namespace jobs is for jobs" in result.output
    assert "Traceback" not in result.output


def test_only_one_sort_of_cluster_is_run_at_a_time(tmp_path: Path) -> None:
    words = ["agent", "run", "--kubernetes", "a.yaml", "--simulated", "b.yaml"]
    result = CliRunner().invoke(app, words, env=KEY)
    assert (result.exit_code, "only one of" in result.output) == (2, True)


@pytest.mark.parametrize("key", ["tmk_secret\nsecret", "tmk_secret\u00fc"])
def test_what_cannot_be_a_key_of_an_agent_is_refused_and_never_shown(key: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(key)
    for words, env in ((["--key-file", str(tmp_path / "key")], {}), ([], {"TRAINMASTER_API_KEY": key})):
        given = {"TRAINMASTER_URL": "http://x", **env}
        result = CliRunner().invoke(app, ["agent", "run", "--kubernetes", "a.yaml", *words], env=given)
        assert (result.exit_code, "this is no API key" in result.output, "secret" in result.output) == (2, True, False)


def test_a_key_is_needed(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["agent", "run", "--kubernetes", "a.yaml"], env={"TRAINMASTER_URL": "http://x"})
    assert (result.exit_code, "--key-file" in result.output) == (2, True)
