"""Types of the parameters of routes: their bounds, and their schemas in the OpenAPI document. Bodies are in the protocol.

A type with a schema of its own is only described by it: the handler checks the value, and answers with the code for it.
"""

from typing import Annotated

from fastapi import Path, Query
from pydantic import StringConstraints, WithJsonSchema

from trainmaster.protocol.base import Name40, QueuePath, text_schema
from trainmaster.protocol.errors import Code
from trainmaster.protocol.groups import GroupName
from trainmaster.protocol.jobs import MOST_MEMBERS
from trainmaster_dispatcher.services.job_queries import MOST_PER_PAGE

MOST_KEY = 2**63 - 1
"""The greatest number of a row in the store."""
LATER_SUBMISSION = (
    Code.UNKNOWN_QUEUE,
    Code.NOT_A_LEAF,
    Code.QUEUE_CLOSED,
    Code.POD_TEMPLATE_REFUSED,
    Code.DEVICES_NOT_COUNTED,
    Code.WEBHOOKS_OFF,
    Code.MAIL_OFF,
    Code.UNKNOWN_PRIORITY_CLASS,
    Code.PRIORITY_CLASS_NOT_ALLOWED,
)
"""Refusals of what submits jobs later, and is checked as they will be."""
_CURSOR = "Cursor of the page: `next` of the page before; the first page without one."
_DIGIT = "[0-9a-hjkmnp-tv-z]"

JobId = Annotated[
    str,
    text_schema(
        f"^[a-z0-9]([-a-z0-9]{{0,22}}[a-z0-9])?-({_DIGIT}{{7}}|{_DIGIT}{{9}})$",
        34,
        "bert-7k2p9xq",
        least=9,
        description="Id of the job.",
    ),
]
WorkflowId = Annotated[
    str,
    text_schema(
        f"^[a-z0-9]([-a-z0-9]{{0,22}}[a-z0-9])?-w({_DIGIT}{{7}}|{_DIGIT}{{9}})$",
        35,
        "nightly-w7k2p9xq",
        least=10,
        description="Id of the workflow.",
    ),
]
GroupInPath = Annotated[
    str,
    text_schema("^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$", 63, "sweep-7", description="Name of the group."),
]
NameInPath = Annotated[
    str,
    text_schema("^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$", 40, "west", description="Name of the cluster."),
]
QueueInPath = Annotated[
    str,
    text_schema("^[-a-z0-9_]+(/[-a-z0-9_]+){0,9}$", 200, "research/vision", description="Path of the queue."),
]
OnBehalfOf = Annotated[
    str,
    text_schema(
        "^[A-Za-z0-9_.@+/-][A-Za-z0-9_.@+/ -]*$",
        100,
        "alice",
        description="Name of the user whose jobs these are, if the key may submit for that user.",
    ),
]
NumberInPath = Annotated[int, Path(ge=0, le=MOST_KEY, description="Number of the object, as lists show it.")]
"""The number of a key, a simulation or a message."""
Limit = Annotated[int, Query(ge=1, le=MOST_PER_PAGE, description="The most entries of the answer.")]
PageLimit = Annotated[
    int, Query(ge=1, le=MOST_PER_PAGE, description="The most entries of a page; a stream goes on without a bound.")
]
After = Annotated[int, Query(ge=0, le=MOST_KEY, description="Only what is later than this version.")]
Cursor = Annotated[str, text_schema("^[A-Za-z0-9_-]+$", 64, "YmVmb3JlOjEyMDA", description=_CURSOR)]
NumberCursor = Annotated[int, Query(ge=0, le=MOST_KEY, description=_CURSOR)]
JobNameFilter = Annotated[
    str,
    StringConstraints(max_length=100),
    WithJsonSchema(
        {
            "type": "string",
            "maxLength": 100,
            "description": "Only jobs of this name, in which `*` stands for any text.",
        }
    ),
]
LabelFilter = Annotated[
    str,
    text_schema(
        "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?=([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$",
        381,
        "team=vision",
        least=2,
    ),
]
GroupFilter = Annotated[GroupName | None, Query(description="Only jobs of the group of this name.")]
QueueOfGroup = Annotated[
    QueuePath | None,
    Query(description="Queue of the group; needed where several queues that you may use have a group of this name."),
]
QueueFilter = Annotated[QueuePath | None, Query(description="Only jobs of this queue and of those below it.")]
ClassFilter = Annotated[Name40 | None, Query(alias="priorityClass", description="Only jobs of this priority class.")]
SubmitterFilter = Annotated[
    str | None,
    Query(
        alias="submittedBy", min_length=1, max_length=100, description="Only jobs that a key of this name submitted."
    ),
]
SearchText = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=150,
        description="The job of this id, and jobs whose name begins with this text, that a key of this name submitted, or with this"
        " label, as `key=value`.",
    ),
]
ClusterOfRun = Annotated[Name40 | None, Query(description="Only transitions of runs on this cluster.")]
FeedPosition = Annotated[str, text_schema("^([A-Za-z0-9_-]+|0)$", 120, "MToxMDM0OjU6MToxNzY0MDYyODgw")]
MemberIndex = Annotated[int, Query(ge=0, lt=MOST_MEMBERS, description="Only members with this index in their role.")]
Attempt = Annotated[int, Query(ge=1, le=99_999, description="Only this attempt; by default the last one.")]
LastEventId = Annotated[str, text_schema("^[0-9]{1,18}$", 18)]
_ETAG = r'(\*|(W/)?"[!#-+.-~-]*")'
ETags = Annotated[
    str, WithJsonSchema({"type": "string", "pattern": f"^{_ETAG}( *, *{_ETAG})*$", "examples": ['"1f0c"', "*"]})
]
"""``*``, or ETags with commas between."""
