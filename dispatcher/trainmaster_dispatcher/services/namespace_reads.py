"""`NamespaceReads`: the queues of namespaces, for calls of the Kubernetes API that create objects."""

from collections.abc import Sequence

from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.store import job_objects as store
from trainmaster_dispatcher.store.job_objects import LeafQueue

_KEPT_SECONDS = 1.0
_MOST_NAMESPACES = 10_000


class NamespaceReads:
    """The queues that take jobs, by namespace, as they were a second ago at most. A namespace without any is looked up each time."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._known: dict[str, tuple[Sequence[LeafQueue], float]] = {}

    async def queues(self, namespace: str) -> Sequence[LeafQueue]:
        """Return the queues of a namespace. Raises ProblemError if the store does not answer."""
        now = self._stores.clock()
        found = self._known.get(namespace)
        if found is not None and now < found[1]:
            return found[0]
        async with self._stores.database.reading() as tx:
            queues = await store.leaf_queues(tx, namespace)
        if len(self._known) >= _MOST_NAMESPACES:
            self._known.clear()
        if queues:
            self._known[namespace] = queues, now + _KEPT_SECONDS
        return queues
