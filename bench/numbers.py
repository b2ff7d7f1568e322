"""What benchmarks have in common: quantiles, and the settings of Postgres that a figure depends on."""

import statistics
from collections.abc import Sequence

from sqlalchemy import create_engine, text

from trainmaster_dispatcher.cli.embedded import redis_command
from trainmaster_dispatcher.store.database import driver_url


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def summary(values: Sequence[float]) -> dict[str, float]:
    """Return the mean and quantiles of values in seconds."""
    return {
        "p50_seconds": round(quantile(values, 0.5), 4),
        "p99_seconds": round(quantile(values, 0.99), 4),
        "mean_seconds": round(statistics.fmean(values), 4),
        "max_seconds": round(max(values), 4),
    }


def stores(url: str) -> dict[str, object]:
    """Return what a figure depends on: the server's settings that make a commit safe, and which Redis was used.

    The stand-in for Redis polls each connection a hundred times a second: wake-ups take up to ten milliseconds longer
    with it.
    """
    return {
        "postgres": _durability(url),
        "redis": "stand-in" if "fake_redis" in " ".join(redis_command(0)) else "redis-server",
    }


def _durability(url: str) -> dict[str, str]:
    engine = create_engine(driver_url(url))
    with engine.connect() as connection:
        names = ("fsync", "full_page_writes", "synchronous_commit")
        found = {name: str(connection.execute(text(f"SHOW {name}")).scalar_one()) for name in names}
    engine.dispose()
    return found
