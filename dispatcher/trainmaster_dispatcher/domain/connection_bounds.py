"""The bounds on HTTP connections, as values. They know nothing of sockets."""

from dataclasses import dataclass

_LONGEST_LOOK = 1.0


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """Bounds of each connection, and on their number. ``most_per_address`` 0: no bound for one address."""

    header_bytes: int = 64 * 1024
    headers: int = 200
    header_seconds: float = 15.0
    body_seconds: float = 30.0
    body_bytes_per_second: int = 4096
    """A body may take ``body_seconds`` and, in addition, the time that the received bytes take at this rate."""
    whole_body_seconds: float = 600.0
    unread_answer_seconds: float = 60.0
    """The time for which a peer may leave an answer unread that does not fit into the connection's buffers."""
    keep_alive_seconds: float = 75.0
    most: int = 10_000
    most_per_address: int = 0
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks whose ``X-Forwarded-For`` is trusted and to which ``most_per_address`` does not apply."""

    @property
    def look_seconds(self) -> float:
        """The time between two checks of all connections."""
        return min(_LONGEST_LOOK, self.header_seconds / 4, self.body_seconds / 4, self.unread_answer_seconds / 4)
