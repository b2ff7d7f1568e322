"""Rights of cluster owners: keys that may look after some clusters, and nothing else."""

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster_dispatcher.store.keys import Caller


def clusters_of(caller: Caller) -> str:
    """Return the clusters of an owner as text."""
    if not caller.clusters:
        return "no cluster any more"
    return f"{'clusters' if len(caller.clusters) > 1 else 'cluster'} {', '.join(caller.clusters)}"


def check_owns(caller: Caller, cluster: str) -> None:
    """Raise ProblemError FORBIDDEN for an owner of other clusters, whether this one exists or not."""
    if caller.is_owner and not caller.owns(cluster):
        raise ProblemError(
            Code.FORBIDDEN,
            f"this needs the role admin, or owner of cluster {cluster}; {caller.title} has owner of {clusters_of(caller)}",
        )
