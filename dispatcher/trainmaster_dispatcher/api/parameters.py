"""Types of the parameters of routes: their bounds, and their schemas in the OpenAPI document. Bodies are in the protocol.

A type with a schema of its own is only described by it: the handler checks the value, and answers with the code for it.
"""

from typing import Annotated

from fastapi import Path, Query
from pydantic import StringConstraints, WithJsonSchema

from trainmaster.protocol.base import text_schema
from trainmaster.protocol.jobs import MOST_MEMBERS
from trainmaster_dispatcher.services.job_queries import MOST_PER_PAGE

MOST_KEY = 2**63 - 1
"""The greatest number of a row in the store."""
_DIGIT = "[0-9a-hjkmnp-tv-z]"

JobId = Annotated[
    str,
    text_schema(f"^[a-z0-9]([-a-z0-9]{{0,22}}[a-z0-9])?-({_DIGIT}{{7}}|{_DIGIT}{{9}})$", 34, "bert-7k2p9xq", least=9),
]
NameInPath = Annotated[str, text_schema("^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$", 40, "private")]
QueueInPath = Annotated[str, text_schema("^[-a-z0-9_]+(/[-a-z0-9_]+){0,9}$", 200, "research/vision")]
NumberInPath = Annotated[int, Path(ge=0, le=MOST_KEY)]
"""The number of a key, a simulation or a message."""
Limit = Annotated[int, Query(ge=1, le=MOST_PER_PAGE)]
After = Annotated[int, Query(ge=0, le=MOST_KEY)]
Cursor = Annotated[str, text_schema("^[A-Za-z0-9_-]+$", 64)]
NumberCursor = Annotated[int, Query(ge=0, le=MOST_KEY)]
JobNameFilter = Annotated[str, StringConstraints(max_length=100), WithJsonSchema({"type": "string", "maxLength": 100})]
"""A name, in which ``*`` stands for any text."""
LabelFilter = Annotated[
    str,
    text_schema(
        "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?=([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$",
        381,
        "team=vision",
        least=2,
    ),
]
MemberIndex = Annotated[int, Query(ge=0, lt=MOST_MEMBERS)]
Attempt = Annotated[int, Query(ge=1, le=99_999)]
LastEventId = Annotated[str, text_schema("^[0-9]{1,18}$", 18)]
_ETAG = r'(\*|(W/)?"[!#-+.-~-]*")'
ETags = Annotated[
    str, WithJsonSchema({"type": "string", "pattern": f"^{_ETAG}( *, *{_ETAG})*$", "examples": ['"1f0c"', "*"]})
]
"""``*``, or ETags with commas between."""
