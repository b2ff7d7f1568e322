"""Checks of the stores that the environment names, for ``doctor`` where no api answers them."""

import asyncio
import os

from pydantic import ValidationError

from trainmaster.protocol.health import HealthCheck, error
from trainmaster_dispatcher.services.doctor import examine
from trainmaster_dispatcher.services.settings import Settings, mistakes_in
from trainmaster_dispatcher.store.database import Database


def store_checks() -> list[HealthCheck]:
    """Return the checks of the stores at DATABASE_URL and REDIS_URL; nothing where no database is named."""
    if not (os.environ.get("DATABASE_URL") or os.environ.get("TRAINMASTER_DATABASE_URL")):
        return []
    try:
        settings = Settings()
    except ValidationError as problem:
        return [error("settings", said, "see docs/reference/settings.md") for said in mistakes_in(problem)]
    return asyncio.run(_examined(settings))


async def _examined(settings: Settings) -> list[HealthCheck]:
    database = Database(settings.database_url, pool_size=1)
    try:
        return await examine(database, settings)
    finally:
        await database.close()
