"""Namespaces of Kubernetes for the jobs of queues. Pure."""


def namespace_of(queue: str) -> str:
    """Return the namespace of the jobs of a queue that declares none: its path with ``-`` in place of ``/``.

    Statements of the store do the same.
    """
    return queue.replace("/", "-")
