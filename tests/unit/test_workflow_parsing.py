"""Workflows as documents: what is refused and where, and the values that jobs get from parameters, elements and results."""

from typing import Any

import pytest

from trainmaster.protocol.errors import ProblemError
from trainmaster.protocol.ids import BadIdError, job_id, parse_job_id, parse_workflow_id, workflow_id
from trainmaster.protocol.parameters import substitute
from trainmaster_dispatcher.services.workflow_parsing import (
    MissingValueError,
    Results,
    check_sizes,
    elements_of,
    fans_of,
    parameter_sets,
    read_workflow,
    references_of,
    sources_of,
)


def one(name: str, *args: str, **fields: Any) -> dict[str, Any]:
    template = {"command": ["run", *args], "resources": {"cpu": "1", "memory": "1Gi"}}
    return {"name": name, "job": {"roles": [{"name": "main", "template": template}]}, **fields}


def document(*steps: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"kind": "Workflow", "name": "nightly", "queue": "research", "steps": list(steps), **fields}


def mistakes(*steps: dict[str, Any], **fields: Any) -> list[tuple[str, str]]:
    with pytest.raises(ProblemError) as raised:
        read_workflow(document(*steps, **fields))
    return [(found.path, found.message) for found in raised.value.mistakes]


@pytest.mark.parametrize(
    ("steps", "path", "words"),
    [
        ([one("a", after=["b"])], "steps[0].after[0].step", "there is no step 'b'"),
        ([one("train"), one("b", after=["trian"])], "steps[1].after[0].step", "train"),
        ([one("a"), one("a")], "steps", "two steps have the name 'a'"),
        ([one("a", after=["a"])], "steps[0].after", "cannot wait for itself"),
        ([one("a", after=["b"]), one("b", after=["a"])], "steps[0].after", "wait for each other: a -> b -> a"),
        ([one("a", cleanup=True)], "steps", "must not be a cleanup step"),
        ([one("a"), one("t", cleanup=True, after=["a"])], "steps[1].after", "starts after all others"),
        ([one("t", cleanup=True), one("a", after=["t"])], "steps[1].after[0].step", "cleanup step"),
        ([one("a"), one("b", "${steps.a.results.x}")], "steps[1].job", "put a into after"),
        ([one("a", "${steps.b.results.x}")], "steps[0].job", "does not end before"),
        ([one("a", "${steps.a}")], "steps[0].job", "is no result of a step"),
        ([one("a", "${item}")], "steps[0].job", "element of forEach"),
        ([one("a"), one("b", "${steps.a.results.x.y}", after=["a"])], "steps[1].job", "is no result of a step"),
        ([one("a"), one("b", "${steps.a.results.x[0]}", after=["a"])], "steps[1].job", "is no result of a step"),
        (
            [one("a"), one("b", "${steps.a.results.x}", after=[{"step": "a", "condition": "started"}])],
            "steps[1].job",
            "does not end before",
        ),
        ([{**one("a"), "job": {"kind": "RayJob"}}], "steps[0].job.kind", "must be Job"),
        ([{**one("a"), "job": {"labels": []}}], "steps[0].job.labels", "must be a mapping"),
        ([one("a", forEach="all")], "steps[0].forEach", "must be a list, or the result of a step"),
        ([one("a", forEach="${steps.b.results.x}")], "steps[0].forEach", "does not end before"),
        ([one("a", forEach=list(range(10_001)))], "steps[0].forEach", "at most 10000"),
        ([{**one("a"), "job": {"name": "x", "roles": []}}], "steps[0].job.name", "is that of the step"),
        ([{**one("a"), "job": {"apiVersion": "batch/v1"}}], "steps[0].job.apiVersion", "without apiVersion"),
        ([one("a", maxRuning=1)], "steps[0].maxRuning", "maxRunning"),
    ],
)
def test_mistakes_are_refused_with_their_place(steps: list[dict[str, Any]], path: str, words: str) -> None:
    found = mistakes(*steps)
    assert found[0][0] == path
    assert words in found[0][1]


def leaving(name: str, **fields: Any) -> dict[str, Any]:
    step = one(name, **fields)
    step["job"]["outputs"] = [{"name": "data", "path": "out"}]
    return step


def getting(name: str, *after: Any, cleanup: bool = False, **given: Any) -> dict[str, Any]:
    step = one(name, after=list(after), cleanup=cleanup)
    step["job"]["inputs"] = [given]
    return step


@pytest.mark.parametrize(
    ("steps", "field", "words"),
    [
        ([leaving("a"), getting("b", artifact="data", step="a")], "step", "does not end before this step: put a into"),
        (
            [leaving("a"), getting("b", {"step": "a", "condition": "started"}, artifact="data", step="a")],
            "step",
            "does not end before",
        ),
        ([leaving("a"), getting("b", "a", artifact="data", step="c")], "step", "there is no step 'c'"),
        ([leaving("a"), getting("b", "a", artifact="data", step=["a"])], "step", "there is no step"),
        ([leaving("a"), getting("b", "a", artifact="data", step="b")], "step", "cannot get its own artifact"),
        ([leaving("a"), getting("b", "a", artifact="dat", step="a")], "artifact", "it has data; did you mean 'data'?"),
        ([one("a"), getting("b", "a", artifact="data", step="a")], "artifact", "has no output 'data': it has none"),
        ([leaving("a"), getting("b", "a", step="a")], "artifact", "is missing: name an output of step 'a'"),
        (
            [leaving("a"), getting("b", "a", artifact="data", step="a", job="x-1234567")],
            "step",
            "neither files nor job",
        ),
        ([leaving("a"), getting("b", "a", files="sha256:0", step="a")], "step", "neither files nor job"),
        ([leaving("a"), getting("b", "a", artifact="data", job="a")], "job", "give it as step"),
        (
            [leaving("a", forEach=[1, 2]), getting("b", "a", artifact="data", step="a")],
            "step",
            "only a step with one job can be named",
        ),
    ],
)
def test_artifacts_that_a_step_cannot_get_are_refused(steps: list[dict[str, Any]], field: str, words: str) -> None:
    ((path, message),) = mistakes(*steps)
    assert path == f"steps[1].job.inputs[0].{field}"
    assert words in message


def test_the_artifact_of_an_array_of_jobs_is_refused() -> None:
    array = leaving("a")
    array["job"]["array"] = {"mode": "jobs", "count": 2}
    ((path, message),) = mistakes(array, getting("b", "a", artifact="data", step="a"))
    assert (path, "many jobs" in message) == ("steps[1].job.inputs[0].step", True)


def test_steps_whose_artifacts_are_named_become_jobs() -> None:
    wanted = read_workflow(
        document(
            leaving("a"),
            one("b", after=["a"]),
            getting("c", "b", artifact="data", step="a", path="in"),
            getting("t", cleanup=True, artifact="data", step="a"),
        )
    )
    assert [sources_of(step) for step in wanted.spec.steps] == [set(), set(), {"a"}, {"a"}]
    job = {"artifact": "data", "job": "a-7k2p9xq", "path": "in"}
    assert wanted.document(2, "nightly-w7k2p9xq", {"a": "a-7k2p9xq"})["inputs"] == [job]
    assert wanted.documents()["jobs"][2]["inputs"] == [{**job, "job": "a"}]
    assert wanted.spec.steps[2].job["inputs"] == [{"artifact": "data", "step": "a", "path": "in"}], "it stays as it was"


@pytest.mark.parametrize("inputs", ["abc", [1], None, {"step": "a"}])
def test_inputs_of_an_odd_form_are_left_to_the_check_of_jobs(inputs: Any) -> None:
    step = one("a")
    step["job"]["inputs"] = inputs
    assert read_workflow(document(step)).document(0)["inputs"] == inputs


@pytest.mark.parametrize(
    "job",
    [
        {"roles": ["abc"]},
        {"roles": "abc"},
        {"roles": [{"template": "x"}]},
        {"roles": [{"template": None, "podTemplate": {"spec": "x"}}]},
        {"roles": [{"template": {"command": 3, "env": []}}]},
        {"roles": None},
        {},
    ],
)
def test_jobs_of_an_odd_form_are_left_to_the_check_of_jobs(job: dict[str, Any]) -> None:
    wanted = read_workflow(document({"name": "a", "job": job}))
    assert wanted.document(0)["name"] == "a"


def test_variables_of_other_tools_stay_as_they_are() -> None:
    wanted = read_workflow(document(one("a", "${model.size} ${HOME}")))
    assert parameter_sets(wanted, 0, "nightly-w7k2p9xq", None, {}) == [{}]


def test_a_document_that_is_too_large_is_refused() -> None:
    assert "at most 1048576" in mistakes(one("a", forEach=["x" * 200] * 6_000))[0][1]


def test_numbers_stay_as_they_were_written() -> None:
    wanted = read_workflow(document(one("a", "${x} ${y} ${z}"), parameters={"x": 1.0, "y": 1, "z": True}))
    (found,) = parameter_sets(wanted, 0, "nightly-w7k2p9xq", None, {})
    args = substitute(wanted.document(0), found)["roles"][0]["template"]["command"]
    assert args == ["run", "1.0 1 true"]


def test_texts_do_not_grow_without_bounds() -> None:
    step = one("a", *["${item}" * 50] * 20, forEach=["x" * 30_000])
    wanted = read_workflow(document(step))
    sets = parameter_sets(wanted, 0, "nightly-w7k2p9xq", wanted.spec.steps[0].for_each, {})
    with pytest.raises(MissingValueError, match="too long"):
        check_sizes(sets, wanted.document(0))
    many = [{"x": "y" * 30_000}] * 1_000
    with pytest.raises(MissingValueError, match="give maxRunning"):
        check_sizes(many, wanted.document(0))


def test_a_workflow_has_steps() -> None:
    assert mistakes()[0][0] == "steps"


def test_a_name_alone_stands_for_success() -> None:
    wanted = read_workflow(document(one("a"), one("b", after=["a", {"step": "a", "condition": "ended"}])))
    assert [(at, condition.value) for at, condition in wanted.steps[1].after] == [(0, "succeeded"), (0, "ended")]


def test_the_job_of_a_step_gets_name_queue_and_labels() -> None:
    step = one("a")
    step["job"]["labels"] = {"part": "x"}
    wanted = read_workflow(document(step, labels={"team": "t"}))
    made = wanted.document(0, "nightly-w7k2p9xq")
    assert (made["name"], made["queue"], made["kind"]) == ("a", "research", "Job")
    assert made["labels"] == {
        "team": "t",
        "part": "x",
        "trainmaster.dev/workflow": "nightly-w7k2p9xq",
        "trainmaster.dev/step": "a",
    }
    step["job"]["queue"] = "other"
    assert read_workflow(document(step)).document(0)["queue"] == "other"


def values(step: dict[str, Any], results: dict[str, Results], **fields: Any) -> list[list[str]]:
    """Return the arguments of the jobs of a step after step ``a``, and of one, ``fan``, with elements."""
    wanted = read_workflow(document(one("a"), one("fan", forEach=[1, 2]), {**step, "after": ["a", "fan"]}, **fields))
    items = elements_of(wanted.spec.steps[2], results, fans_of(wanted.spec))
    sets = parameter_sets(wanted, 2, "nightly-w7k2p9xq", items, results)
    made = [substitute(wanted.document(2), given) for given in sets]
    return [found["roles"][0]["template"]["command"][1:] for found in made]


A: dict[str, Results] = {
    "a": [("a-7k2p9xq", {"loss": 0.5, "parts": ["x", "y"], "best": {"rate": 1}, "name": "n"})],
    "fan": [("fan-1", {"score": 1}), ("fan-2", None)],
}


def test_results_of_steps_become_texts() -> None:
    texts = ["${steps.a.results.loss}", "at ${steps.a.results.name}", "${steps.a.results.best}", "${workflow.id}"]
    assert values(one("b", *texts), A) == [["0.5", "at n", '{"rate":1}', "nightly-w7k2p9xq"]]


def test_results_of_a_step_with_elements_are_a_list() -> None:
    texts = ["${steps.fan.results}", "${steps.fan.results.score}"]
    assert values(one("b", *texts), A) == [['[{"score":1},null]', "[1,null]"]]


def test_a_step_has_a_job_for_each_element_of_a_result() -> None:
    step = one("b", "${item}", "${rate}", "$HOME ${HOME}", forEach="${steps.a.results.parts}")
    assert values(step, A, parameters={"rate": 0.1}) == [
        ["x", "0.1", "$HOME ${HOME}"],
        ["y", "0.1", "$HOME ${HOME}"],
    ]


def test_fields_of_elements_follow_a_dot() -> None:
    step = one("b", "${item.rate}/${item.seed}", forEach=[{"rate": 0.1, "seed": 1}, {"rate": 1, "seed": 2}])
    assert values(step, A) == [["0.1/1"], ["1/2"]]


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (one("b", "${steps.a.results.none}"), "job a-7k2p9xq has returned only best, loss, name, parts"),
        (one("b", forEach="${steps.a.results.loss}"), "forEach needs a list, and ${steps.a.results.loss} is 0.5"),
        (one("b", "${item.x}", forEach=[1]), "${item.x} does not exist: the element is 1"),
    ],
)
def test_values_that_do_not_exist_are_said(step: dict[str, Any], words: str) -> None:
    with pytest.raises(MissingValueError) as raised:
        values(step, A)
    assert words in str(raised.value)


def test_a_job_without_results_and_a_value_that_is_too_long_are_said() -> None:
    with pytest.raises(MissingValueError, match="job a-1 has returned no results"):
        values(one("b", "${steps.a.results.x}"), {"a": [("a-1", None)]})
    with pytest.raises(MissingValueError, match="at most 32768"):
        values(one("b", "${steps.a.results.x}"), {"a": [("a-1", {"x": "y" * 32_769})]})


def test_the_steps_that_a_step_uses_are_found() -> None:
    wanted = read_workflow(document(one("a"), one("b", "${steps.a.results.x}", after=["a"])))
    assert [references_of(step) for step in wanted.spec.steps] == [set(), {"a"}]


@pytest.mark.parametrize("key", [1, 77, 2**35 - 1, 2**35, 2**45 - 1])
def test_ids_of_workflows_are_no_ids_of_jobs(key: int) -> None:
    for name in ("nightly", "a-w", "w"):
        assert parse_workflow_id(workflow_id(name, key)) == (name, key)
        with pytest.raises(BadIdError, match="is the id of a workflow, not of a job"):
            parse_job_id(workflow_id(name, key))
        with pytest.raises(BadIdError):
            parse_workflow_id(job_id("nightly", key))
