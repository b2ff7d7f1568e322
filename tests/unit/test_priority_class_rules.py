"""Which priority classes users may give to jobs, by their queue and those above it."""

import pytest

from trainmaster.protocol.tenants import PriorityClassSpec, QueueSpec
from trainmaster_dispatcher.domain.priority_classes import allowed_classes, not_allowed

CLASSES = [
    PriorityClassSpec(name="low", value=-1),
    PriorityClassSpec(name="normal", value=0, default=True),
    PriorityClassSpec(name="equal", value=0),
    PriorityClassSpec(name="firm", value=0, preemptible=False),
    PriorityClassSpec(name="high", value=1),
]


def queue(*names: str, default: str | None = None) -> QueueSpec:
    return QueueSpec(path="a", priority_classes=names, default_priority_class=default)


@pytest.mark.parametrize(
    ("ancestry", "allowed"),
    [
        ([queue(), queue()], {"low", "normal", "equal"}),
        ([queue("firm"), queue("high")], {"firm"}),
        ([queue(), queue("high", "normal")], {"high", "normal"}),
        ([queue(default="high"), queue()], {"low", "normal", "equal", "high"}),
        ([queue(), queue(default="high")], {"low", "normal", "equal"}),
        ([queue("low", default="firm")], {"low", "firm"}),
    ],
)
def test_which_classes_users_may_use(ancestry: list[QueueSpec], allowed: set[str]) -> None:
    assert allowed_classes(ancestry, CLASSES) == allowed


def test_a_default_class_may_always_be_used_and_without_one_0_is_the_highest() -> None:
    firm = [PriorityClassSpec(name="firm", value=5, preemptible=False, default=True), *CLASSES[2:]]
    assert allowed_classes([queue()], firm) == {"firm", "equal", "high"}
    assert allowed_classes([queue()], CLASSES[2:]) == {"equal"}


def test_the_error_tells_what_is_allowed() -> None:
    assert "class 'high' is not allowed in queue 'a/b'; allowed are: low, normal;" in str(
        not_allowed("high", "a/b", {"normal", "low"})
    )
