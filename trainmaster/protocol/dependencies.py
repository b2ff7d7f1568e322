"""Jobs that start after others."""

from typing import Annotated, Self

from pydantic import StringConstraints, model_validator

from trainmaster.protocol.base import QueuePath, Strict, bounded, example
from trainmaster.protocol.groups import GroupName
from trainmaster.protocol.labels import LabelKey, LabelValue
from trainmaster.protocol.states import Condition

_MOST_LABELS = 20


class Predecessor(Strict):
    """Jobs after which a job starts: one job, those that have labels when the job is submitted, or all of a group."""

    model_config = example(job="prepare-0v9k3m2", condition="succeeded")

    job: Annotated[str, StringConstraints(min_length=1, max_length=253)] | None = None
    """Id of a job, name of another job of the same submission, or name of an object in the job's queue."""
    labels: Annotated[dict[LabelKey, LabelValue], bounded(_MOST_LABELS)] | None = None
    """Labels: the job starts after each job that has all of these when it is submitted; at most 10,000."""
    group: GroupName | None = None
    """Name of a group: the job starts after the group is closed and all its jobs have ended."""
    queue: QueuePath | None = None
    """With ``labels``: only jobs of this queue and those below it; with ``group``: its queue. By default the job's own."""
    condition: Condition = Condition.SUCCEEDED
    """State that they must have come to: ``succeeded``, ``failed``, ``ended`` in any way, or, but for groups, ``started``."""
    elementwise: bool = False
    """True between arrays with equal numbers of elements: each element is submitted once that of the other array with the same index
    has come to this state. The job is an array with ``mode: jobs``; the other one is an array of either mode."""

    @model_validator(mode="after")
    def _is_one_of_these(self) -> Self:
        if (self.job is not None) + bool(self.labels) + (self.group is not None) != 1:
            raise ValueError("needs exactly one of job, labels and group")
        if self.queue is not None and self.job is not None:
            raise ValueError("queue goes with labels and group only: the id of a job says which one it is")
        if self.group is not None and self.condition is Condition.STARTED:
            raise ValueError(
                "a group has no moment at which it has started: the condition is succeeded, failed or ended"
            )
        if self.elementwise and self.job is None:
            raise ValueError("elementwise goes with job: it is between two arrays")
        if self.elementwise and self.condition is Condition.STARTED:
            raise ValueError("elementwise waits for elements that have succeeded, failed or ended")
        return self
