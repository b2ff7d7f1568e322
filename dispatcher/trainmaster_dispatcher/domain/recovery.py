"""The sentence by which clusters are closed while a restored store waits for what agents run."""

from collections.abc import Iterable


def closed_by_recovery(awaited: Iterable[str]) -> str:
    """Return why clusters start nothing before the agents of the clusters ``awaited`` have reported their runs."""
    return (
        "the dispatcher's store was restored from a backup, and jobs that it holds as queued may be running. Nothing starts before"
        f" these clusters have reported what they run: {', '.join(awaited)}. If one of them is gone for good:"
        " trainmaster clusters declare-lost NAME"
    )
