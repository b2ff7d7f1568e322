"""Specifications that are valid and can never mean anything are refused with the path of what is meaningless."""

from typing import Any

import pytest
from pydantic import ValidationError

from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.meaningless import meaningless
from trainmaster.protocol.tenants import QueueSpec
from trainmaster.protocol.validation_errors import mistakes_of


def job(template: dict[str, Any], **fields: Any) -> JobSpec:
    return JobSpec.model_validate(
        {"name": "a", "queue": "q", "roles": [{"name": "main", "template": template}], **fields}
    )


@pytest.mark.parametrize(
    ("spec", "path", "said"),
    [
        (job({"command": ["true"]}, timeLimit="0s"), "timeLimit", "must be above 0s"),
        (job({"command": ["true"]}, stopGrace="11m"), "stopGrace", "at most 10m"),
        (job({"command": []}), "roles[0].template.command", "must name a program"),
        (
            QueueSpec.model_validate({"path": "q", "allowedKinds": []}),
            "allowedKinds",
            "at least one of private, public, edge",
        ),
    ],
)
def test_what_can_never_mean_anything_is_refused(spec: JobSpec | QueueSpec, path: str, said: str) -> None:
    (mistake,) = meaningless(spec)
    assert mistake.path == path
    assert said in mistake.message


def test_what_means_something_is_taken() -> None:
    assert meaningless(job({"image": "a"}, timeLimit="1s", stopGrace="10m")) == ()
    assert meaningless(QueueSpec(path="q")) == ()


def test_an_amount_that_is_too_large_is_quoted() -> None:
    with pytest.raises(ValidationError) as refused:
        job({"command": ["true"], "resources": {"cpu": "9" * 30}})
    (mistake,) = mistakes_of(refused.value)
    assert (mistake.path, mistake.message) == (
        "roles[0].template.resources.cpu",
        f"'{'9' * 30}' is too large for a quantity",
    )
