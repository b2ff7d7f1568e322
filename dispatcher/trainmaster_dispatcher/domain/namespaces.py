"""Namespaces of Kubernetes for the jobs of queues. Pure."""


def namespace_of(queue: str) -> str:
    """Return the namespace of a queue's jobs: its path with ``-`` in place of ``/``. Statements of the store do the same."""
    return queue.replace("/", "-")
