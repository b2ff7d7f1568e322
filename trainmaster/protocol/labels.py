"""Labels of jobs and clusters, written as in Kubernetes."""

from typing import Annotated

from pydantic import StringConstraints

from trainmaster.protocol.base import bounded, worded_pattern

_LABEL_WORDS = "letters, digits, '-', '_' and '.' that begin and end with a letter or a digit"
LabelKey = Annotated[
    str,
    StringConstraints(
        max_length=317,
        pattern=worded_pattern(
            r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
            f"{_LABEL_WORDS}, with a domain and '/' before it or without",
        ),
    ),
]
LabelValue = Annotated[
    str,
    StringConstraints(
        max_length=63,
        pattern=worded_pattern(r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$", f"empty, or {_LABEL_WORDS}"),
    ),
]
Labels = Annotated[dict[LabelKey, LabelValue], bounded(100)]
