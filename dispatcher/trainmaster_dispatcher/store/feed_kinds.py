"""The kinds of rows in ``changes``, the feed that the scheduler and open pages follow beside the events of jobs."""

from enum import StrEnum


class FeedKind(StrEnum):
    """The kind of object that has changed. The row's ``ref`` is the object's key, or 0 where all of that kind may have changed."""

    JOBS = "jobs"
    """A submission; ``ref`` is the key of its first job, ``many`` the number of jobs."""
    QUEUE = "queue"
    PRIORITY_CLASS = "class"
    RESERVATION = "reservation"
    CLUSTER = "cluster"
    DATASET = "dataset"
    BURST_POLICY = "policy"
    PRICES = "prices"
    ROLE_BINDING = "role-binding"
    """Roles of people, which the scheduler does not read."""
    CONTACT = "contact"
    """The begin or end of an agent's session."""
    CAPACITY = "capacity"
    """A cluster's report."""
    SPENDING = "spend"
    """Costs of runs by burst policies."""
    PROVISIONING = "provisioning"
    """How long runs have waited for nodes that pools had to add."""
    UNKNOWN = "unknown"
    """A kind that a newer release has written; no release writes this name."""

    @staticmethod
    def read(text: str) -> "FeedKind":
        """Return the kind that is stored as ``text``; UNKNOWN for one that this release does not know."""
        return _BY_TEXT.get(text, FeedKind.UNKNOWN)

    @property
    def changes_declared(self) -> bool:
        """Return whether something that admins declare for the scheduler may have changed."""
        return self not in _OTHERS


_BY_TEXT = {kind.value: kind for kind in FeedKind}
_OTHERS = {FeedKind.CONTACT, FeedKind.CAPACITY, FeedKind.SPENDING, FeedKind.PROVISIONING, FeedKind.ROLE_BINDING}
