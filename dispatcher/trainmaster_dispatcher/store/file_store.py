"""The file store: where archives of jobs' files are. A port with two sides: a folder, and S3-compatible object storage.

An archive arrives under the key of an upload and gets its own key once its size and SHA-256 are verified; from then on it never
changes. What is written to an upload later, such as by an address that is still valid, reaches no archive.
"""

import asyncio
import fcntl
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar
from urllib.parse import urlsplit

from trainmaster.archives import hash_of
from trainmaster.protocol.errors import Code, ProblemError

if TYPE_CHECKING:
    from obstore.store import S3Store

Returned = TypeVar("Returned")
_AWAY_SECONDS = 2.0
_TIMEOUT = "60s"
UPLOAD_SECONDS = 3600
"""Seconds for which the address of an upload is valid."""
DOWNLOAD_SECONDS = 900
"""Seconds for which the address of an archive is valid; a download that has begun goes on."""
_MOST_PIECE = 16 * 1024 * 1024


class UploadMismatchError(Exception):
    """The data of an upload is not what was announced; says in which respect."""


class FileStore(Protocol):
    """Interface of a file store. Each call raises ProblemError STORE_AWAY when the store cannot be used now."""

    async def upload_url(self, upload: str) -> str | None:
        """Return the address to which an archive is sent by PUT; None: it is written in parts by ``write``."""
        ...

    async def download_url(self, key: str) -> str | None:
        """Return the address of an archive; None: it is read by ``read``."""
        ...

    async def write(self, upload: str, offset: int, data: bytes) -> None:
        """Write a part of an upload; repeating it changes nothing. Raises ProblemError NOT_FOUND for one that is finished."""
        ...

    async def finish(self, upload: str, key: str, size: int, sha256: str) -> None:
        """Verify an upload and make it the archive ``key``, which is durable when it returns. Raises UploadMismatchError."""
        ...

    async def read(self, key: str, offset: int, limit: int) -> bytes:
        """Return a part of an archive. Raises ProblemError NOT_FOUND if it does not exist."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove archives and uploads; those that do not exist are left alone."""
        ...


class FolderFileStore:
    """Archives as files of a folder, which all apis and workers see."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder

    async def upload_url(self, upload: str) -> str | None:
        return None

    async def download_url(self, key: str) -> str | None:
        return None

    async def write(self, upload: str, offset: int, data: bytes) -> None:
        await _in_thread(self._write, upload, offset, data)

    def _write(self, upload: str, offset: int, data: bytes) -> None:
        path = self._path(upload)
        file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_SH)
            if not _is_still_there(path, file):
                raise ProblemError(Code.NOT_FOUND, "this upload is finished")
            view = memoryview(data)
            while view:
                written = os.pwrite(file, view, offset)
                view, offset = view[written:], offset + written
        finally:
            os.close(file)

    async def finish(self, upload: str, key: str, size: int, sha256: str) -> None:
        await _in_thread(self._finish, upload, key, size, sha256)

    def _finish(self, upload: str, key: str, size: int, sha256: str) -> None:
        path, target = self._path(upload), self._path(key)
        try:
            file = path.open("rb")
        except FileNotFoundError as error:
            raise UploadMismatchError("nothing was uploaded") from error
        with file:
            # Nobody writes any more, and who waits to do so finds that the file is another one.
            fcntl.flock(file, fcntl.LOCK_EX)
            found = os.fstat(file.fileno()).st_size
            if found != size:
                raise UploadMismatchError(f"{found} bytes were uploaded, not {size}")
            digest, _ = hash_of(file)
            if digest != sha256:
                raise UploadMismatchError(f"the SHA-256 of what was uploaded is {digest}, not {sha256}")
            os.fsync(file.fileno())
            path.rename(target)
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    async def read(self, key: str, offset: int, limit: int) -> bytes:
        return await _in_thread(self._read, key, offset, limit)

    def _read(self, key: str, offset: int, limit: int) -> bytes:
        try:
            with self._path(key).open("rb") as file:
                return os.pread(file.fileno(), limit, offset)
        except FileNotFoundError as error:
            raise _is_gone() from error

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            await _in_thread(self._path(key).unlink, True)

    def _path(self, key: str) -> Path:
        path = self._folder / key
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return path


class S3FileStore:
    """Archives as objects of a bucket."""

    def __init__(self, store: "S3Store") -> None:
        self._store = store

    @classmethod
    def open(cls, url: str) -> "S3FileStore":
        """Open ``s3://bucket/prefix``; endpoint, region and credentials are read from the environment or the machine's role."""
        from obstore.store import S3Store

        return cls(S3Store.from_url(url, client_options={"timeout": _TIMEOUT, "allow_http": True}))

    async def upload_url(self, upload: str) -> str | None:
        return await self._signed("PUT", upload, UPLOAD_SECONDS)

    async def download_url(self, key: str) -> str | None:
        return await self._signed("GET", key, DOWNLOAD_SECONDS)

    async def _signed(self, method: Literal["GET", "PUT"], key: str, seconds: int) -> str:
        from obstore import sign_async
        from obstore.exceptions import BaseError

        try:
            return await sign_async(self._store, method, key, timedelta(seconds=seconds))
        except (BaseError, OSError) as error:
            raise _away(error) from error

    async def write(self, upload: str, offset: int, data: bytes) -> None:
        raise ProblemError(Code.NOT_FOUND, "the data of this upload is sent to its `url`, not here")

    async def finish(self, upload: str, key: str, size: int, sha256: str) -> None:
        from obstore import delete_async, get_async, put_async
        from obstore.exceptions import BaseError

        try:
            found = await get_async(self._store, upload)
            if found.meta["size"] != size:
                raise UploadMismatchError(f"{found.meta['size']} bytes were uploaded, not {size}")
            digest = hashlib.sha256()

            async def verified() -> AsyncIterator[bytes]:
                async for piece in found.stream(min_chunk_size=_MOST_PIECE):
                    data = bytes(piece)
                    await asyncio.to_thread(digest.update, data)
                    yield data

            # What is stored is what was hashed, even if the upload is replaced meanwhile.
            await put_async(self._store, key, verified(), use_multipart=True)
            if digest.hexdigest() != sha256:
                await delete_async(self._store, key)
                raise UploadMismatchError(f"the SHA-256 of what was uploaded is {digest.hexdigest()}, not {sha256}")
            await delete_async(self._store, upload)
        except FileNotFoundError as error:
            raise UploadMismatchError("nothing was uploaded") from error
        except (BaseError, OSError) as error:
            raise _away(error) from error

    async def read(self, key: str, offset: int, limit: int) -> bytes:
        from obstore import get_range_async, head_async
        from obstore.exceptions import BaseError

        try:
            size = (await head_async(self._store, key))["size"]
            if offset >= size:
                return b""
            return bytes(await get_range_async(self._store, key, start=offset, end=min(size, offset + limit)))
        except FileNotFoundError as error:
            raise _is_gone() from error
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


def check_files_url(url: str) -> str:
    """Return the URL of a file store. Raises ValueError where it is none."""
    parts = urlsplit(url)
    is_folder = parts.scheme == "file" and not parts.netloc and parts.path
    if not is_folder and not (parts.scheme == "s3" and parts.netloc):
        raise ValueError("a file store is file:///FOLDER or s3://BUCKET/PREFIX")
    return url


def open_file_store(url: str) -> FileStore | None:
    """Return the file store of a setting; None where it is empty."""
    if not url:
        return None
    parts = urlsplit(check_files_url(url))
    return FolderFileStore(Path(parts.path)) if parts.scheme == "file" else S3FileStore.open(url)


async def _in_thread(work: Callable[..., Returned], *arguments: Any) -> Returned:
    """Call a function that reads or writes files in a thread; map its errors."""
    try:
        return await asyncio.to_thread(work, *arguments)
    except OSError as error:
        raise _away(error) from error


def _is_still_there(path: Path, file: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(file))
    return False


def _is_gone() -> ProblemError:
    return ProblemError(Code.NOT_FOUND, "these files are not stored any more")


def _away(error: Exception) -> ProblemError:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    # Only its first words: what follows may be an address with a signature.
    return ProblemError(
        Code.STORE_AWAY, f"the file store cannot be used: {lines[0][:300].partition('?')[0]}", retry_after=_AWAY_SECONDS
    )
