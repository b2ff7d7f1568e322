"""The tree of a workflow's steps: each below the last of those after which it starts."""

from typing import Any

import pytest

from trainmaster.cli.workflow_tree import placed, predecessors_of
from trainmaster.protocol.states import StepState
from trainmaster.protocol.workflows import StepView

CASES: dict[str, tuple[dict[str, tuple[str, ...]], list[str]]] = {
    "a chain": (
        {"prepare": (), "train": ("prepare",), "report": ("train",)},
        ["prepare", "└─train", "  └─report"],
    ),
    "steps without order are at the margin": ({"a": (), "b": ()}, ["a", "b"]),
    "branches": (
        {"a": (), "b": ("a",), "b2": ("b",), "c": ("a",)},
        ["a", "├─b", "│ └─b2", "└─c"],
    ),
    "a join is below the longest way to it": (
        {"a": (), "short": ("a",), "long": ("a",), "longer": ("long",), "join": ("short", "longer")},
        ["a", "├─short", "└─long", "  └─longer", "    └─join (short)"],
    ),
    "the order of the document does not matter": ({"b": ("a",), "a": ()}, ["a", "└─b"]),
    "a long chain stays at the margin": (
        {f"s{number}": (f"s{number - 1}",) if number else () for number in range(14)},
        ["s0", *(f"s{number} (s{number - 1})" for number in range(1, 14))],
    ),
}


@pytest.mark.parametrize(("after", "expected"), CASES.values(), ids=CASES.keys())
def test_trees(after: dict[str, tuple[str, ...]], expected: list[str]) -> None:
    views = [StepView(name=name, state=StepState.WAITING) for name in after]
    shown = [
        f"{one.branch}{one.view.name}" + (f" ({', '.join(one.after)})" if one.after else "")
        for one in placed(views, after)
    ]
    assert shown == expected


def test_conditions_are_read_in_each_form() -> None:
    spec: dict[str, Any] = {
        "steps": [
            {"name": "a"},
            {"name": "b", "after": ["a", {"step": "a", "condition": "ended"}]},
            {"name": "c", "after": [{"step": "b"}, "a"]},
            {"name": "tidy", "cleanup": True},
        ]
    }
    assert predecessors_of(spec, ["a", "b", "c", "tidy"]) == {"a": (), "b": ("a",), "c": ("b", "a"), "tidy": ()}
