"""The log store: where the pieces of members' output are. A port with three sides: Postgres, a folder, S3-compatible object storage.

A piece is written once under a key of its own; writing it again replaces it by the same. All pieces are compressed by the caller.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster_dispatcher.store.database import Database

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES = ("file", "s3")
_AWAY_SECONDS = 2.0
_TIMEOUT = "20s"
_AT_ONCE = 16


class LogStore(Protocol):
    """Interface of a log store. Each call raises ProblemError STORE_AWAY when the store cannot be used now."""

    async def put(self, pieces: Mapping[str, bytes]) -> None:
        """Write pieces by key. They are durable when it returns."""
        ...

    async def get(self, key: str) -> bytes | None:
        """Return a piece; None if it does not exist."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove pieces; those that do not exist are left alone."""
        ...


class PostgresLogStore:
    """Pieces in a table of their own in Postgres: the embedded default."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, pieces: Mapping[str, bytes]) -> None:
        async with self._database.transaction() as tx:
            await tx.run(
                """
                INSERT INTO output_data (key, data)
                SELECT key, data FROM unnest(CAST(:keys AS text[]), CAST(:data AS bytea[])) AS n(key, data)
                ON CONFLICT (key) DO UPDATE SET data = excluded.data
                """,
                keys=list(pieces),
                data=list(pieces.values()),
            )

    async def get(self, key: str) -> bytes | None:
        async with self._database.reading() as tx:
            row = await tx.first("SELECT data FROM output_data WHERE key = :key", key=key)
        return None if row is None else bytes(row.data)

    async def delete(self, keys: Sequence[str]) -> None:
        async with self._database.transaction() as tx:
            await tx.run("DELETE FROM output_data WHERE key = ANY(:keys)", keys=list(keys))


class ObjectLogStore:
    """Pieces as objects, in a folder or a bucket."""

    def __init__(self, store: "ObjectStore") -> None:
        self._store = store

    @classmethod
    def open(cls, url: str) -> "ObjectLogStore":
        """Open ``file:///folder`` or ``s3://bucket/prefix``.

        Endpoint, region and credentials of S3 are read from the environment (``AWS_ENDPOINT_URL``, ``AWS_REGION``,
        ``AWS_ACCESS_KEY_ID`` ...), or from the machine's role. Raises ValueError for another URL.
        """
        from obstore.store import LocalStore, S3Store

        parts = urlsplit(check_url(url))
        if parts.scheme == "file":
            folder = Path(parts.path)
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            return cls(LocalStore(prefix=folder))
        return cls(S3Store.from_url(url, client_options={"timeout": _TIMEOUT, "allow_http": True}))

    async def put(self, pieces: Mapping[str, bytes]) -> None:
        from obstore import put_async
        from obstore.exceptions import BaseError

        try:
            for keys in _batches(list(pieces)):
                await asyncio.gather(*(put_async(self._store, key, pieces[key]) for key in keys))
        except (BaseError, OSError) as error:
            raise _away(error) from error

    async def get(self, key: str) -> bytes | None:
        from obstore import get_async
        from obstore.exceptions import BaseError

        try:
            found = await get_async(self._store, key)
            return bytes(await found.bytes_async())
        except FileNotFoundError:
            return None
        except (BaseError, OSError) as error:
            raise _away(error) from error

    async def delete(self, keys: Sequence[str]) -> None:
        from obstore import delete_async
        from obstore.exceptions import BaseError

        for key in keys:
            try:
                await delete_async(self._store, key)
            except FileNotFoundError:
                continue
            except (BaseError, OSError) as error:
                raise _away(error) from error


def check_url(url: str) -> str:
    """Return the URL of a log store. Raises ValueError where it is none."""
    parts = urlsplit(url)
    if (
        parts.scheme not in SCHEMES
        or (parts.scheme == "s3") != bool(parts.netloc)
        or (not parts.netloc and not parts.path)
    ):
        raise ValueError(
            "a log store is file:///FOLDER or s3://BUCKET/PREFIX; without one, output is stored in Postgres"
        )
    return url


def open_log_store(url: str, database: Database) -> LogStore:
    """Return the log store of a setting: Postgres where it is empty."""
    return ObjectLogStore.open(url) if url else PostgresLogStore(database)


def _batches(keys: list[str]) -> list[list[str]]:
    return [keys[start : start + _AT_ONCE] for start in range(0, len(keys), _AT_ONCE)]


def _away(error: Exception) -> ProblemError:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return ProblemError(Code.STORE_AWAY, f"the log store cannot be used: {lines[0][:300]}", retry_after=_AWAY_SECONDS)
