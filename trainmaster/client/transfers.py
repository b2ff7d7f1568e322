"""Uploads of folders and downloads of artifacts: what both clients do around their calls. Archives are temporary files."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import httpx

from trainmaster.archives import ArchiveError, Packed, hash_of, pack, unpack
from trainmaster.client import wire
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.files import ArtifactAnswer

_CHUNK = 1024 * 1024
_TRANSFER_SECONDS = 60.0
"""Seconds without a byte after which a transfer is given up."""


class FilesError(ProblemError):
    """Files that cannot be packed or extracted, or whose transfer failed."""

    def __init__(self, message: str, code: Code = Code.INVALID_PARAMETER) -> None:
        super().__init__(code, message)


def packed(source: str | os.PathLike[str]) -> tuple[IO[bytes], Packed]:
    """Return the archive of a folder's content or of a file, as an open temporary file. Raises FilesError."""
    path = Path(source)
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    try:
        if not path.exists():
            raise FilesError(f"{path} does not exist")
        made = pack(path, file)
        if not made.entries:
            raise FilesError(f"{path} has no files that are not left out")
    except (ArchiveError, OSError) as error:
        file.close()
        raise FilesError(f"{path} cannot be packed: {_words(error)}") from error
    except BaseException:
        file.close()
        raise
    file.seek(0)
    return file, made


def put_file(url: str, file: IO[bytes], size: int) -> None:
    """Send a whole archive to an address of a file store, without any key of ours. Raises FilesError.

    The address has a signature: no error quotes it.
    """
    file.seek(0)
    try:
        answer = httpx.put(
            url,
            content=_chunks(file),
            headers={"Content-Length": str(size)},
            timeout=wire.timeouts(_TRANSFER_SECONDS),
            verify=wire.trusted_certificates(url),
            trust_env=wire.goes_through_proxies(url),
        )
    except httpx.HTTPError as error:
        raise FilesError(f"the file store at {_host(url)} cannot be reached: {error}", Code.STORE_AWAY) from None
    if not answer.is_success:
        raise FilesError(
            f"the file store at {_host(url)} refused the upload with status {answer.status_code}", Code.STORE_AWAY
        )


def get_file(url: str, file: IO[bytes]) -> None:
    """Fetch a whole archive from an address of a file store. Raises FilesError."""
    try:
        with httpx.stream(
            "GET",
            url,
            timeout=wire.timeouts(_TRANSFER_SECONDS),
            verify=wire.trusted_certificates(url),
            trust_env=wire.goes_through_proxies(url),
        ) as answer:
            if not answer.is_success:
                raise FilesError(
                    f"the file store at {_host(url)} refused the download with status {answer.status_code}",
                    Code.STORE_AWAY,
                )
            for chunk in answer.iter_bytes(_CHUNK):
                file.write(chunk)
    except httpx.HTTPError as error:
        raise FilesError(f"the file store at {_host(url)} cannot be reached: {error}", Code.STORE_AWAY) from None


def extract(file: IO[bytes], artifact: ArtifactAnswer, folder: str | os.PathLike[str]) -> int:
    """Verify a downloaded archive and extract it to a folder; return the number of files and folders. Raises FilesError."""
    file.seek(0)
    digest, size = hash_of(file)
    if (digest, size) != (artifact.sha256, artifact.size):
        raise FilesError(
            f"the data of artifact {artifact.name} is not what was stored: {size} bytes with SHA-256 {digest}, not {artifact.size}"
            f" with {artifact.sha256}",
            Code.UPLOAD_MISMATCH,
        )
    file.seek(0)
    try:
        return unpack(file, Path(folder))
    except (ArchiveError, OSError) as error:
        raise FilesError(f"artifact {artifact.name} is not extracted to {folder}: {_words(error)}") from error


def parts_of(file: IO[bytes], part_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and the data of each part of a file."""
    file.seek(0)
    offset = 0
    while data := file.read(part_bytes):
        yield offset, data
        offset += len(data)


def may_be_done(error: ProblemError) -> bool:
    """Return whether an earlier try of a call that finishes an upload may have succeeded."""
    return error.code in (Code.NOT_FOUND, Code.UPLOAD_MISMATCH)


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while data := file.read(_CHUNK):
        yield data


def _host(url: str) -> str:
    return httpx.URL(url).host


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)
