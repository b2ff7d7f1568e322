"""The sentence by which clusters are closed while a restored store waits for what agents run."""

from collections.abc import Iterable, Mapping
from typing import Any

from trainmaster_dispatcher.domain.redaction import protected

ANOTHER_CLUSTER = "a cluster of other queues"
_RESTORED = "the dispatcher's store was restored from a backup"
_OF_ADMINS = ""
"""Path that no queue has."""


def closed_by_recovery(awaited: Iterable[Mapping[str, Any]]) -> str:
    """Return why clusters start nothing before the agents of the clusters ``awaited`` have reported their runs.

    Each is its ``name`` and, if it is for some queues alone, ``onlyQueues``; only people with rights to all of these read its name.
    """
    names = ", ".join(map(_named, awaited))
    if not names:
        return f"{_RESTORED}, and every cluster has reported what it runs: starts go on once the leading scheduler has seen it"
    return (
        f"{_RESTORED}, and jobs that it holds as queued may be running. Nothing starts before these clusters have reported what they"
        f" run: {names}. If one of them is gone for good: trainmaster clusters declare-lost NAME"
    )


def _named(cluster: Mapping[str, Any]) -> str:
    name, only = str(cluster["name"]), cluster.get("onlyQueues")
    if only is None or only == []:
        return name
    is_readable = isinstance(only, list) and all(isinstance(path, str) for path in only)
    return protected(name, only if is_readable else _OF_ADMINS, ANOTHER_CLUSTER)
