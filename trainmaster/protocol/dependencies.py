"""Jobs that start after others."""

from typing import Annotated, Self

from pydantic import StringConstraints, model_validator

from trainmaster.protocol.base import QueuePath, Strict, bounded, example
from trainmaster.protocol.labels import LabelKey, LabelValue
from trainmaster.protocol.states import Condition

_MOST_LABELS = 20


class Predecessor(Strict):
    """Jobs after which a job starts: one job, or those that have labels when the job is submitted."""

    model_config = example(job="prepare-0v9k3m2", condition="succeeded")

    job: Annotated[str, StringConstraints(min_length=1, max_length=253)] | None = None
    """Id of a job, name of another job of the same submission, or name of an object in the job's queue."""
    labels: Annotated[dict[LabelKey, LabelValue], bounded(_MOST_LABELS)] | None = None
    """Labels: the job starts after each job that has all of these when it is submitted; at most 10,000."""
    queue: QueuePath | None = None
    """With ``labels``: only jobs of this queue and those below it; by default, of the job's own queue."""
    condition: Condition = Condition.SUCCEEDED
    """State that they must have come to: ``succeeded``, ``failed``, ``ended`` in any way, or ``started``."""
    elementwise: bool = False
    """True between arrays with equal numbers of elements: each element is submitted once that of the other array with the same index
    has come to this state. The job is an array with ``mode: jobs``; the other one is an array of either mode."""

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Self:
        if (self.job is None) == (not self.labels):
            raise ValueError("needs exactly one of job and labels")
        if self.queue is not None and self.job is not None:
            raise ValueError("queue goes with labels only: the id of a job says which one it is")
        if self.elementwise and self.job is None:
            raise ValueError("elementwise goes with job: it is between two arrays")
        if self.elementwise and self.condition is Condition.STARTED:
            raise ValueError("elementwise waits for elements that have succeeded, failed or ended")
        return self
