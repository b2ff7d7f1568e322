"""Schedules: jobs that are submitted again and again, by a cron expression. As documents of our own, and as CronJobs of Kubernetes."""

from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, StringConstraints

from trainmaster.protocol.base import Lenient, QueuePath, Strict, Timestamp, example, text_schema
from trainmaster.protocol.durations import Duration, parse_duration
from trainmaster.protocol.labels import Labels

DUE_ANNOTATION: Final = "batch.kubernetes.io/cronjob-scheduled-timestamp"
"""The annotation of such a job: the time for which it was made, as Kubernetes writes it."""
CRON_JOB: Final = "batch/v1 CronJob"
"""The kind of schedules that were written as CronJobs."""
LONGEST_NAME: Final = 52
"""Most characters of a schedule's name, as of a CronJob's: names of its jobs are longer by the minute."""
LONGEST_JITTER: Final = 3600.0
"""Most seconds of a jitter."""


class ConcurrencyPolicy(StrEnum):
    """Consequence of a job of the schedule that has not ended when the next one is due."""

    ALLOW = "Allow"
    FORBID = "Forbid"
    REPLACE = "Replace"


def _check_name(value: str) -> str:
    body = value.replace("-", "a").replace(".", "a")
    is_plain = body.isascii() and body.isalnum() and body == body.lower()
    if (
        not is_plain
        or len(value) > LONGEST_NAME
        or any(part.strip("-") != part or not part for part in value.split("."))
    ):
        raise ValueError(
            f"must have 1 to {LONGEST_NAME} small letters, digits, - and ., and a letter or digit at the begin and end of each part"
        )
    return value


def _check_jitter(value: str) -> str:
    if parse_duration(value) > LONGEST_JITTER:
        raise ValueError("is at most 1h")
    return value


_PART = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
ScheduleName = Annotated[
    str, AfterValidator(_check_name), text_schema(rf"^{_PART}(\.{_PART})*$", LONGEST_NAME, "nightly")
]
_CRON = "[-*?/,0-9A-Za-z]+"
CronText = Annotated[
    str,
    StringConstraints(max_length=200),
    text_schema(
        rf"^(@(yearly|annually|monthly|weekly|daily|midnight|hourly)|{_CRON}( {_CRON}){{4}})$",
        200,
        "0 3 * * *",
        "@daily",
    ),
]
ZoneName = Annotated[
    str,
    StringConstraints(max_length=100),
    text_schema("^[-+A-Za-z0-9_]+(/[-+A-Za-z0-9_]+)*$", 100, "UTC", "Europe/Berlin"),
]
HistoryLimit = Annotated[int, Field(ge=0, le=10_000)]


class ScheduleSpec(Strict):
    """Jobs that are submitted by the clock."""

    model_config = example(
        kind="Schedule",
        name="nightly",
        queue="research/vision",
        schedule="30 3 * * mon-fri",
        timeZone="Europe/Berlin",
        concurrencyPolicy="Forbid",
        startingDeadline="1h",
        job={
            "roles": [
                {
                    "name": "worker",
                    "replicas": 1,
                    "template": {"image": "registry.example.com/evaluate:1", "command": ["python", "evaluate.py"]},
                }
            ]
        },
    )

    kind: Literal["Schedule"] = "Schedule"
    """Kind of this document."""
    name: ScheduleName
    """Name of the schedule, unique in its queue; the first part of the names of its jobs."""
    queue: QueuePath
    """Path of the queue of its jobs; one without queues below it."""
    schedule: CronText
    """Cron expression of five fields, or one of ``@hourly``, ``@daily``, ``@weekly``, ``@monthly``, ``@yearly``."""
    time_zone: ZoneName = "UTC"
    """Time zone of the expression, by its IANA name."""
    concurrency_policy: ConcurrencyPolicy = ConcurrencyPolicy.ALLOW
    """Consequence of an earlier job that has not ended: another one beside it, none, or one in its place."""
    starting_deadline: Duration | None = None
    """The most time after a due time in which its job is still submitted; None: until the next due time."""
    jitter: Annotated[Duration, AfterValidator(_check_jitter)] = "0s"
    """The most time by which each job is submitted later than due, at most 1h. How much is fixed for each due time."""
    suspend: bool = False
    """True to submit no jobs until it is resumed."""
    successful_jobs_history_limit: HistoryLimit | None = None
    """Number of succeeded jobs that remain objects of the Kubernetes API; None: all that retention keeps."""
    failed_jobs_history_limit: HistoryLimit | None = None
    """Number of failed and cancelled jobs that remain objects of the Kubernetes API; None: all that retention keeps."""
    labels: Labels = Field(default_factory=dict)
    """Labels of the schedule. Those of its jobs are in ``job``."""
    job: dict[str, Any]
    """The job: a specification without name and queue, or a manifest of a kind that is taken as a job."""


class CronJobTemplate(Strict):
    """The Job that a CronJob makes. Kubernetes' own fields are checked where Jobs are."""

    metadata: dict[str, Any] | None = None
    """Labels and annotations of its Jobs."""
    spec: dict[str, Any]
    """Specification of its Jobs."""


class CronJobSpec(Strict):
    """The specification of a CronJob, with the defaults of Kubernetes. A null means the default."""

    schedule: CronText
    """Cron expression."""
    time_zone: ZoneName | None = None
    """Time zone of the expression; by default UTC."""
    starting_deadline_seconds: Annotated[int, Field(ge=0, le=10 * 366 * 86_400)] | None = None
    """The most seconds after a due time in which its Job is still made."""
    concurrency_policy: ConcurrencyPolicy | None = None
    """Consequence of an earlier Job that has not ended; by default ``Allow``."""
    suspend: bool | None = None
    """True to make no Jobs."""
    job_template: CronJobTemplate
    """The Job."""
    successful_jobs_history_limit: HistoryLimit | None = None
    """Number of succeeded Jobs that remain objects; by default 3."""
    failed_jobs_history_limit: HistoryLimit | None = None
    """Number of failed Jobs that remain objects; by default 1."""


class CronJobManifest(Strict):
    """A CronJob of Kubernetes."""

    model_config = example(
        apiVersion="batch/v1",
        kind="CronJob",
        metadata={"name": "nightly", "annotations": {"trainmaster.dev/queue": "research/vision"}},
        spec={
            "schedule": "30 3 * * 1-5",
            "timeZone": "Europe/Berlin",
            "jobTemplate": {
                "spec": {
                    "template": {
                        "spec": {
                            "restartPolicy": "Never",
                            "containers": [
                                {
                                    "name": "evaluate",
                                    "image": "registry.example.com/evaluate:1",
                                    "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
                                }
                            ],
                        }
                    }
                }
            },
        },
    )

    api_version: Literal["batch/v1"]
    """Always ``batch/v1``."""
    kind: Literal["CronJob"]
    """Always ``CronJob``."""
    metadata: dict[str, Any]
    """Name, labels and annotations; a label, an annotation or the namespace names the queue."""
    spec: CronJobSpec
    """The specification."""


class ScheduleView(Lenient):
    """A schedule in answers: its specification, and what has become of it."""

    model_config = example(
        name="nightly",
        queue="research/vision",
        schedule="30 3 * * mon-fri",
        timeZone="Europe/Berlin",
        concurrencyPolicy="Forbid",
        createdAt="2026-11-24T08:00:00.000Z",
        submittedBy="alice",
        nextDue="2026-11-25T02:30:00.000Z",
        nextDueLocal="2026-11-25T03:30:00+01:00",
        lastDue="2026-11-24T02:30:00.000Z",
        active=["nightly-7k2p9xq"],
    )

    name: str
    """Name of the schedule."""
    queue: str
    """Path of the queue of its jobs."""
    object_kind: str = "Schedule"
    """``Schedule``, or ``batch/v1 CronJob`` where it was written as one."""
    schedule: str
    """Cron expression."""
    time_zone: str
    """Time zone of the expression."""
    concurrency_policy: str
    """Consequence of an earlier job that has not ended."""
    suspend: bool = False
    """True while it submits no jobs, until it is resumed."""
    labels: dict[str, str] = {}
    """Labels of the schedule."""
    created_at: Timestamp
    """Time at which it was made."""
    submitted_by: str
    """Name of whose jobs it makes: who wrote it last."""
    next_due: Timestamp | None = None
    """Its next due time; missing while it is suspended."""
    next_due_local: str | None = None
    """The same by the clock of its time zone."""
    last_due: Timestamp | None = None
    """The latest due time for which a job was made."""
    last_succeeded: Timestamp | None = None
    """Time at which a job of it last succeeded."""
    active: tuple[str, ...] = ()
    """Ids of its jobs that have not ended; at most 100."""
    message: str = ""
    """Reason for which a job that is due was not submitted; empty where none is missing."""
    spec: dict[str, Any] | None = None
    """The specification as it was written; of one that was written as a CronJob, the one of that. Not in lists."""


class SchedulePage(Lenient):
    """A page of schedules, by queue and name."""

    model_config = example(schedules=[], next=None)

    schedules: tuple[ScheduleView, ...]
    """The schedules."""
    next: str | None = None
    """Cursor of the next page; None on the last one."""


class ScheduleChange(Strict):
    """A change of a schedule: a merge patch of its specification, in which null takes a field away."""

    model_config = example(suspend=True)

    schedule: CronText | None = None
    """Cron expression."""
    time_zone: ZoneName | None = None
    """Time zone of the expression."""
    concurrency_policy: ConcurrencyPolicy | None = None
    """Consequence of an earlier job that has not ended."""
    suspend: bool | None = None
    """True to submit no jobs until it is resumed."""


class ScheduleRun(Lenient):
    """A job of a schedule that was submitted as somebody asked for it."""

    model_config = example(id="nightly-7k2p9xq")

    id: str
    """Id of the job."""
