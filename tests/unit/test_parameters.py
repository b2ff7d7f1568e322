"""Parameter sets: what a table may hold, and where its values go."""

from typing import Any

import pytest

from trainmaster.protocol.parameters import check_sets, placeholders, substitute, unfilled


def spec(**template: Any) -> dict[str, Any]:
    return {"kind": "Job", "name": "a", "queue": "q", "roles": [{"name": "main", "template": template}]}


def test_values_reach_commands_arguments_environment_and_working_directory() -> None:
    given = spec(
        image="i:${lr}",
        command=["train", "--lr=${lr}"],
        args=["${seed}${seed}", "$seed", "${HOME}"],
        env={"LR": "${lr}", "${lr}": "x"},
        workingDir="/runs/${seed}",
    )
    made = substitute(given, {"lr": "0.1", "seed": 7})
    assert made["roles"][0]["template"] == {
        "image": "i:${lr}",
        "command": ["train", "--lr=0.1"],
        "args": ["77", "$seed", "${HOME}"],
        "env": {"LR": "0.1", "${lr}": "x"},
        "workingDir": "/runs/7",
    }
    assert given["roles"][0]["template"]["command"] == ["train", "--lr=${lr}"], "the given one stays as it is"
    assert placeholders(given) == {"lr", "seed", "HOME"}


def test_values_reach_the_containers_of_pod_templates_and_nothing_that_admission_reads() -> None:
    container = {"image": "${x}", "command": ["${x}"], "args": ["${x}"], "env": [{"name": "${x}", "value": "${x}"}]}
    pod = {"metadata": {"labels": {"a": "${x}"}}, "spec": {"containers": [container], "serviceAccountName": "${x}"}}
    made = substitute({"roles": [{"name": "main", "podTemplate": pod}]}, {"x": "v"})["roles"][0]["podTemplate"]
    assert made["metadata"] == pod["metadata"]
    assert made["spec"]["serviceAccountName"] == "${x}"
    assert made["spec"]["containers"] == [
        {"image": "${x}", "command": ["v"], "args": ["v"], "env": [{"name": "${x}", "value": "v"}]}
    ]


@pytest.mark.parametrize(("value", "text"), [(True, "true"), (3, "3"), (0.5, "0.5"), ("", ""), ("${a}", "${a}")])
def test_a_value_is_written_as_in_json_and_never_read_again(value: Any, text: str) -> None:
    assert substitute(spec(args=["${a}"]), {"a": value})["roles"][0]["template"]["args"] == [text]


def test_what_no_parameter_fills_is_warned_of_once_for_each_role() -> None:
    given = spec(command=["sh", "-c", "train ${rate} ${seed} ${seed}"], args=["${rat}"])
    (first, second) = unfilled(["rate"], given)
    assert (first.path, second.path) == ("roles[0]", "roles[0]")
    assert first.message == (
        "the table has no parameter 'rat', only rate: ${rat} stays as it is; did you mean rate?;"
        " a variable of a shell may be written $rat"
    )
    assert "'seed'" in second.message


@pytest.mark.parametrize(
    "given",
    [
        spec(args=["${a}", "$seed", "${seed:-1}", "$$", "${HOME} ${TRAINMASTER_RANK}"]),
        spec(args=["${a}", "${seed}"], env={"seed": "1"}),
        {
            "roles": [
                {
                    "name": "m",
                    "podTemplate": {
                        "spec": {"containers": [{"args": ["${seed}"], "env": [{"name": "seed", "value": "1"}]}]}
                    },
                }
            ]
        },
    ],
    ids=["a shell's", "of the environment", "of a container's environment"],
)
def test_what_is_a_variable_is_no_warning(given: dict[str, Any]) -> None:
    assert unfilled(["a"], given) == []


def test_capital_letters_of_a_parameter_in_small_ones_are_warned_of() -> None:
    assert len(unfilled(["seed"], spec(args=["${SEED}", "${seed}"]))) == 1


WRONG: dict[str, tuple[list[Any], str, str]] = {
    "no mapping": (["a"], "parameters[0]", "must be a mapping"),
    "no parameter": ([{}], "parameters[0]", "must be a mapping"),
    "a name of a megabyte": ([{"a" * 2**20: 1}] * 60, "parameters[0]", "at most 63"),
    "a bad name": ([{"l r": 1}], "parameters[0].l r", "a name has letters"),
    "a name that is mistyped": ([{"sead": 1}], "parameters[0].sead", "has ${sead}; did you mean seed?"),
    "a name that is used nowhere": ([{"a": 1, "b": 1}], "parameters[0].b", "has ${b}"),
    "a set that lacks one": ([{"a": 1}, {}], "parameters[1]", "exactly the parameters a"),
    "a set with one more": ([{"a": 1}, {"a": 1, "b": 2}], "parameters[1]", "exactly the parameters a"),
    "a list": ([{"a": [1]}], "parameters[0].a", "must be a text"),
    "nothing": ([{"a": None}], "parameters[0].a", "must be a text"),
    "a text too long": ([{"a": "x" * 4097}], "parameters[0].a", "at most 4096"),
    "too many names": ([{f"a{n}": 1 for n in range(65)}], "parameters[0]", "at most 64"),
}


@pytest.mark.parametrize(("sets", "path", "message"), WRONG.values(), ids=WRONG)
def test_a_table_may_not_have(sets: list[Any], path: str, message: str) -> None:
    texts, mistakes = check_sets(sets, spec(args=["${a}", "${seed}"]))
    assert texts == []
    assert mistakes[0].path == path
    assert message in mistakes[0].message


def test_mistakes_are_told_up_to_a_point() -> None:
    _, mistakes = check_sets([{"a": None}] * 1000, spec(args=["${a}"]))
    assert len(mistakes) == 50


GROWING: dict[str, tuple[dict[str, Any], str]] = {
    "a text that grows": (spec(args=["${a}" * 9]), "a text would have 36864 characters"),
    "texts that grow together": (spec(args=["${a}"] * 65), "its texts would have 266240 characters"),
    "a specification that is large already": (
        spec(args=["${a}", *["x" * 30_000] * 9]),
        "the job of a table has at most",
    ),
}


@pytest.mark.parametrize(("given", "message"), GROWING.values(), ids=GROWING)
def test_a_table_may_not_blow_its_job_up(given: dict[str, Any], message: str) -> None:
    texts, mistakes = check_sets([{"a": "x"}, {"a": "x" * 4096}], given)
    assert (texts, mistakes[0].path) == ([], "job")
    assert message in mistakes[0].message
