"""The form of Redis addresses. Without metrics, which a worker must not import before it has read its settings."""

from contextlib import closing

from redis import Redis


def check_address(text: str) -> str:
    """Return the address of a Redis. Raises ValueError, which does not repeat the address: it may have a password."""
    try:
        with closing(Redis.from_url(text)):
            return text
    except (ValueError, TypeError) as error:
        raise ValueError("must be the address of a Redis server, such as redis://host:6379/0") from error
