"""Workflows: jobs in steps, each of which starts after others and may use their results."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, WithJsonSchema, field_validator, model_validator

from trainmaster.protocol.base import Lenient, Name24, QueuePath, Strict, Timestamp, bounded, example, worded_pattern
from trainmaster.protocol.labels import Labels
from trainmaster.protocol.notices import Chat, EmailAddresses, WebhookUrl, check_one_channel
from trainmaster.protocol.states import Condition, StepState, WorkflowState

MOST_STEPS: Final = 200
MOST_ELEMENTS: Final = 10_000
"""The most jobs of one step."""
LONGEST_VALUE: Final = 32_768
"""The most characters of a value that a step's jobs get."""
WORKFLOW_LABEL: Final = "trainmaster.dev/workflow"
"""The label of a workflow's jobs: the id of the workflow."""
STEP_LABEL: Final = "trainmaster.dev/step"
"""The label of a workflow's jobs: the name of the step."""
ITEM: Final = "item"
"""The parameter of a step's jobs that has the element of ``forEach``; fields of an element that is a mapping follow a dot."""
_REFERENCE = re.compile(r"\$\{steps\.([a-z0-9][-a-z0-9]{0,23})\.results(?:\.([A-Za-z_][A-Za-z0-9_]{0,62}))?\}")
_MOST_PARAMETERS = 64
_LONGEST_PARAMETER = 4096

ParameterName = Annotated[
    str,
    StringConstraints(
        max_length=63,
        pattern=worded_pattern(
            "^[A-Za-z_][A-Za-z0-9_]*$", "letters, digits and '_' that begin with a letter or with '_'"
        ),
    ),
]


class OnStepFailure(StrEnum):
    """Consequences of a failed step for the rest of its workflow."""

    STOP = "stop"
    """Jobs that have been submitted go on; no other step is started, except those whose conditions name the failure or the end of a
    step."""
    CANCEL = "cancel"
    """As ``stop``, and the other jobs are cancelled."""
    CONTINUE = "continue"
    """Steps that do not need the failed one are started."""


class StepCondition(Strict):
    """A condition on another step of the workflow."""

    model_config = example(step="train", condition="succeeded")

    step: Name24
    """Name of the other step."""
    condition: Condition = Condition.SUCCEEDED
    """State that it must have come to: ``succeeded``, ``failed``, ``ended`` in any way, or ``started``."""


class WorkflowNotify(Strict):
    """A receiver of messages about a workflow: a webhook, e-mail or a chat."""

    model_config = example(url="https://hooks.example.org/trainmaster", states=["failed"], stepFailed=True)

    url: WebhookUrl | None = None
    """Webhook: address that gets a signed POST for each of these states."""
    email: EmailAddresses | None = None
    """E-mail addresses that get a message for each of these states; their domains are those that an admin allows."""
    chat: Chat | None = None
    """Incoming webhook of a chat service that gets a message for each of these states."""
    states: Annotated[tuple[WorkflowState, ...], bounded(4)] = (
        WorkflowState.SUCCEEDED,
        WorkflowState.FAILED,
        WorkflowState.CANCELLED,
    )
    """States of the workflow to report; ``running`` is its submission and each ``resume``."""
    step_failed: bool = False
    """True to report also each step that has failed."""

    @model_validator(mode="after")
    def _reports_something(self) -> Self:
        check_one_channel(self.url, self.email, self.chat)
        if not self.states and not self.step_failed:
            raise ValueError("needs at least one state, or stepFailed: without any the webhook would get no message")
        return self


def _condition(value: Any) -> Any:
    return {"step": value} if isinstance(value, str) else value


def _check_for_each(value: Any) -> Any:
    if isinstance(value, str) and _REFERENCE.fullmatch(value):
        return value
    if not isinstance(value, list):
        raise ValueError("must be a list, or the result of a step, such as ${steps.plan.results.shards}")  # noqa: TRY004 - pydantic
    if len(value) > MOST_ELEMENTS:
        raise ValueError(f"has {len(value)} elements, at most {MOST_ELEMENTS} are allowed")
    return value


class Step(Strict):
    """A step of a workflow: one job, or one for each element of a list."""

    model_config = example(
        name="evaluate",
        after=[{"step": "train"}],
        forEach=["a", "b"],
        job={
            "roles": [
                {
                    "name": "worker",
                    "template": {
                        "image": "registry.example.com/evaluate:1",
                        "command": ["python", "evaluate.py", "${item}"],
                    },
                }
            ]
        },
    )

    name: Name24
    """Name of the step, unique in the workflow; the first part of the ids of its jobs."""
    after: Annotated[tuple[Annotated[StepCondition, BeforeValidator(_condition)], ...], bounded(MOST_STEPS)] = ()
    """Conditions on other steps, all of which must be met before it starts. A name alone stands for ``succeeded``."""
    for_each: Annotated[
        list[Any] | str | None,
        BeforeValidator(lambda value: None if value is None else _check_for_each(value)),
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "array", "items": {}, "maxItems": MOST_ELEMENTS},
                    {"type": "string", "pattern": _REFERENCE.pattern},
                ]
            }
        ),
    ] = None
    """Elements for each of which the step has a job: a list, or the result of a step that is one."""
    max_running: Annotated[int, Field(ge=1, le=MOST_ELEMENTS)] | None = None
    """The most jobs of the step that wait or run at a time; None: all of them."""
    may_fail: bool = False
    """True if the workflow can succeed, and goes on, although the step fails."""
    cleanup: bool = False
    """True to start the step once all others have ended in any way, also after the workflow was cancelled."""
    job: dict[str, Any]
    """Specification of the job, without its name. Its queue is the workflow's, unless it names one."""


class WorkflowSpec(Strict):
    """Jobs in steps."""

    model_config = example(
        kind="Workflow",
        name="nightly",
        queue="research/vision",
        parameters={"rate": "0.1"},
        steps=[
            {
                "name": "train",
                "job": {
                    "roles": [
                        {
                            "name": "worker",
                            "template": {
                                "image": "registry.example.com/train:1",
                                "command": ["python", "train.py", "${rate}"],
                            },
                        }
                    ]
                },
            },
            {
                "name": "report",
                "after": [{"step": "train"}],
                "job": {
                    "roles": [
                        {
                            "name": "worker",
                            "template": {
                                "image": "registry.example.com/report:1",
                                "command": ["python", "report.py", "${steps.train.results.loss}"],
                            },
                        }
                    ]
                },
            },
        ],
    )

    kind: Literal["Workflow"] = "Workflow"
    """Kind of this document."""
    name: Name24
    """Name of the workflow; the first part of its id."""
    queue: QueuePath
    """Path of the queue of its jobs; one without queues below it."""
    labels: Labels = Field(default_factory=dict)
    """Labels of the workflow and of its jobs."""
    parameters: Annotated[dict[ParameterName, str | int | float | bool], bounded(_MOST_PARAMETERS)] = Field(
        default_factory=dict
    )
    """Values for ``${name}`` in the commands, arguments and environments of its jobs."""
    on_failure: OnStepFailure = OnStepFailure.STOP
    """Consequence of a failed step: ``stop``, ``cancel`` or ``continue``."""
    notify: Annotated[tuple[WorkflowNotify, ...], bounded(8)] = ()
    """Webhooks, e-mail and chats for the workflow: its end, its start, failed steps."""
    steps: Annotated[tuple[Step, ...], bounded(MOST_STEPS, least=1)]
    """The steps, in any order."""

    @field_validator("parameters")
    @classmethod
    def _short_enough(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        for name, one in value.items():
            if isinstance(one, str) and len(one) > _LONGEST_PARAMETER:
                raise ValueError(f"{name} has {len(one)} characters, at most {_LONGEST_PARAMETER} are allowed")
        return value

    @field_validator("steps")
    @classmethod
    def _names_differ(cls, value: tuple[Step, ...]) -> tuple[Step, ...]:
        if not value:
            raise ValueError("a workflow has at least one step")
        names = [step.name for step in value]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two steps have the name {name!r}")
        if all(step.cleanup for step in value):
            raise ValueError("at least one step must not be a cleanup step")
        return value


class StepView(Lenient):
    """A step in answers."""

    model_config = example(
        name="evaluate",
        state="running",
        total=8,
        jobs={"succeeded": 5, "running": 3},
        ids=["evaluate-7k2p9xq"],
        message="",
    )

    name: str
    """Name of the step."""
    state: StepState
    """State of the step."""
    message: str = ""
    """Conditions that are open, or the reason for which it was skipped, failed or is not started yet."""
    total: int | None = None
    """Number of its jobs once all are submitted; None until that is known."""
    jobs: dict[str, int] = {}
    """Number of its jobs by state."""
    ids: tuple[str, ...] = ()
    """Ids of its jobs, at most 100: those that have not succeeded first."""
    started_at: Timestamp | None = None
    """Time at which its first job was submitted."""
    ended_at: Timestamp | None = None
    """Time at which it came to its last state."""


class WorkflowView(Lenient):
    """A workflow in answers."""

    model_config = example(
        id="nightly-w7k2p9xq",
        name="nightly",
        queue="research/vision",
        state="running",
        submittedBy="alice",
        submittedAt="2026-11-24T08:00:00.000Z",
        attempt=1,
        steps=[{"name": "train", "state": "running", "total": 1, "jobs": {"running": 1}, "ids": ["train-7k2p9xq"]}],
    )

    id: str
    """Id of the workflow."""
    name: str
    """Its name."""
    queue: str
    """Path of its queue."""
    state: WorkflowState
    """State of the workflow."""
    is_cancelling: bool = False
    """True from the cancellation until the last job has ended."""
    labels: dict[str, str] = {}
    """Labels of the workflow."""
    submitted_by: str
    """Name of whose jobs it makes."""
    submitted_at: Timestamp
    """Time of its submission."""
    ended_at: Timestamp | None = None
    """Time of its end."""
    attempt: int = 1
    """1, and one more with each ``resume``."""
    undelivered: int | None = None
    """Number of its webhook messages that were given up. Not in lists."""
    steps: tuple[StepView, ...] = ()
    """Its steps in the order of the specification. In lists without messages and ids."""
    spec: dict[str, Any] | None = None
    """The specification as it was written. Not in lists."""


class WorkflowPage(Lenient):
    """A page of workflows, newest first."""

    model_config = example(workflows=[], next=None)

    workflows: tuple[WorkflowView, ...]
    """The workflows."""
    next: str | None = None
    """Cursor of the next page; None on the last one."""


class SubmittedWorkflow(Lenient):
    """A workflow that was submitted."""

    model_config = example(id="nightly-w7k2p9xq")

    id: str
    """Id of the workflow."""
    warnings: tuple[dict[str, str], ...] = ()
    """Names in its jobs of what does not exist now, and texts that may be mistyped parameters."""


class WorkflowCancel(Strict):
    """Options of the cancellation of a workflow."""

    model_config = example(cleanup=False)

    cleanup: bool = True
    """False to cancel the cleanup steps as well."""


class ResultReference(Strict):
    """The result of a step to which a text refers."""

    step: str
    """Name of the step."""
    result: str | None = None
    """Name of the result; None: all results of the step."""


def read_reference(text: str) -> ResultReference | None:
    """Return the result to which a whole text of the form ``${steps.plan.results.shards}`` refers; None for another text."""
    found = _REFERENCE.fullmatch(text)
    return None if found is None else ResultReference(step=found[1], result=found[2])
