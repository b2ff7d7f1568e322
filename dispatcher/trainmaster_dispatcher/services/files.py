"""Files that users upload for the jobs of a queue.

Addresses of the file store go to the caller alone: no log, event or explanation has them.
"""

import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.files import (
    PART_BYTES,
    UploadAnswer,
    UploadSpec,
    named,
)
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.store import files as store
from trainmaster_dispatcher.store import tenants
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.file_store import FileStore, UploadMismatchError
from trainmaster_dispatcher.store.keys import Caller

MOST_UPLOADS = 100
"""The most uploads of a queue that are under way: each may have as many bytes as an upload may have."""


Noted = Callable[[Transaction, store.Upload], Awaitable[None]]
"""Writes down that an upload is finished."""


class NamedFiles(NamedTuple):
    """Files that a specification names. ``path``: where in the submission."""

    queue: str
    sha256: str
    path: str


def file_store(stores: Stores) -> FileStore:
    """Return the file store. Raises ProblemError FILES_OFF where the installation has none."""
    if stores.files is None:
        raise files_off()
    return stores.files


def files_off() -> ProblemError:
    """Return the error for an installation without a file store."""
    return ProblemError(
        Code.FILES_OFF,
        "this installation stores no files of jobs: an admin has to set TRAINMASTER_FILES_STORE of all apis and workers, to"
        " s3://BUCKET/PREFIX or file:///FOLDER",
    )


def new_upload_id() -> str:
    """Return the id of a new upload, which nobody can guess."""
    return f"u-{secrets.token_hex(16)}"


def new_key(kind: str) -> str:
    """Return a key for an archive in the file store."""
    return f"{kind}/{secrets.token_hex(16)}"


def check_size(settings: Settings, size: int, what: str) -> None:
    """Raise ProblemError BODY_TOO_LARGE for an archive that is larger than the installation allows."""
    if size > settings.files_bytes:
        raise ProblemError(
            Code.BODY_TOO_LARGE,
            f"{what} has {size} bytes, at most {settings.files_bytes} are allowed (TRAINMASTER_FILES_BYTES)",
        )


async def check_free(tx: Transaction, settings: Settings, queue_id: int, queue: str, more: int) -> None:
    """Raise ProblemError FILES_FULL where a queue would have more bytes of files than it may."""
    most = settings.files_bytes_per_queue
    if not most:
        return
    used = await store.bytes_of_queue(tx, queue_id)
    if used + more > most:
        raise ProblemError(
            Code.FILES_FULL,
            f"queue {queue!r} has {used} bytes of files and artifacts, {more} more would exceed its {most}"
            " (TRAINMASTER_FILES_BYTES_PER_QUEUE); files go when no job names them any more, artifacts with their jobs",
        )


async def begin(stores: Stores, caller: Caller, spec: UploadSpec) -> UploadAnswer:
    """Begin to upload files for a queue, unless it has them. Raises ProblemError."""
    files = file_store(stores)
    check_size(stores.settings, spec.size, "the archive")
    async with stores.database.transaction() as tx:
        queue_id = await _queue(tx, caller, spec.queue)
        found = (await store.find(tx, queue_id, [spec.sha256])).get(spec.sha256)
        if found is not None:
            return UploadAnswer(files=named(found.sha256), size=found.size, stored=True)
        await check_free(tx, stores.settings, queue_id, spec.queue, spec.size)
        if await store.uploads_of_queue(tx, queue_id) >= MOST_UPLOADS:
            raise ProblemError(
                Code.FILES_FULL,
                f"{MOST_UPLOADS} uploads for queue {spec.queue!r} are under way; those that are not finished go after a day",
            )
        upload = new_upload_id()
        await store.begin_upload(
            tx, store.Upload(upload, queue_id, spec.queue, spec.sha256, spec.size, None, None, None)
        )
    url = await files.upload_url(upload)
    return UploadAnswer(
        files=named(spec.sha256),
        size=spec.size,
        stored=False,
        upload=upload,
        url=url,
        part_bytes=PART_BYTES if url is None else None,
    )


async def write(stores: Stores, caller: Caller, upload_id: str, offset: int, data: bytes) -> int:
    """Write a part of an upload; return the offset behind it. Raises ProblemError."""
    files = file_store(stores)
    async with stores.database.reading() as tx:
        upload = await _upload_of(tx, caller, upload_id)
    check_part(upload, offset, data)
    await files.write(upload.id, offset, data)
    return offset + len(data)


def check_part(upload: store.Upload, offset: int, data: bytes) -> None:
    """Raise ProblemError for a part that is too large, or that goes beyond the announced size."""
    if len(data) > PART_BYTES:
        raise ProblemError(Code.BODY_TOO_LARGE, f"a part may have at most {PART_BYTES} bytes, not {len(data)}")
    if offset + len(data) > upload.size:
        raise ProblemError(
            Code.UPLOAD_MISMATCH, f"this part ends at byte {offset + len(data)}, and {upload.size} bytes were announced"
        )


async def finish(stores: Stores, caller: Caller, upload_id: str, noted: Noted) -> UploadAnswer:
    """Verify an upload; from then on jobs of the queue may name it. ``noted`` is called in the transaction of that.

    Raises ProblemError UPLOAD_MISMATCH.
    """
    files = file_store(stores)
    async with stores.database.reading() as tx:
        upload = await _upload_of(tx, caller, upload_id)
    done = UploadAnswer(files=named(upload.sha256), size=upload.size, stored=True)
    key = new_key("files")
    await verified(files, upload, key)
    async with stores.database.transaction() as tx:
        await store.lock_queue(tx, upload.queue_id)
        if not await store.end_upload(tx, upload.id):
            await store.remove_later(tx, [key])
            raise _no_upload(upload_id)
        await store.remove_later(tx, [upload.id])
        if await store.find(tx, upload.queue_id, [upload.sha256]):
            await store.remove_later(tx, [key])
            return done
        problem = await beyond_bound(tx, stores, upload, key)
        if problem is None:
            await store.add_files(tx, upload.queue_id, upload.sha256, upload.size, key)
            await noted(tx, upload)
    if problem is not None:
        raise problem
    return done


async def beyond_bound(tx: Transaction, stores: Stores, upload: store.Upload, key: str) -> ProblemError | None:
    """Check the bound of a queue once more at the end of an upload, as others may have added files meanwhile.

    Return the error where it would be exceeded; the archive ``key`` is then removed later. The queue must be locked.
    """
    try:
        await check_free(tx, stores.settings, upload.queue_id, upload.queue, upload.size)
    except ProblemError as error:
        await store.remove_later(tx, [key])
        return error
    return None


async def verified(files: FileStore, upload: store.Upload, key: str) -> None:
    """Verify an upload and make it the archive ``key``. Raises ProblemError UPLOAD_MISMATCH."""
    try:
        await files.finish(upload.id, key, upload.size, upload.sha256)
    except UploadMismatchError as error:
        raise ProblemError(Code.UPLOAD_MISMATCH, f"{error}; upload it again") from error


async def _upload_of(tx: Transaction, caller: Caller, upload_id: str) -> store.Upload:
    upload = await store.find_upload(tx, upload_id)
    if upload is None or upload.job_id is not None or not caller.may_use(upload.queue):
        raise _no_upload(upload_id)
    return upload


def _no_upload(upload_id: str) -> ProblemError:
    return ProblemError(Code.NOT_FOUND, f"there is no upload {upload_id[:100]!r} under way; begin a new one")


async def _queue(tx: Transaction, caller: Caller, path: str) -> int:
    """Return the key of a queue for which the caller may upload files. Raises ProblemError."""
    if not caller.may_use(path):
        raise ProblemError(Code.FORBIDDEN, f"{caller.title} has no right to queue {path!r}")
    await tenants.hold_queues(tx, [path])
    queue = (await tenants.QUEUES.by_name(tx, [path])).get(path)
    if queue is None:
        raise ProblemError(Code.UNKNOWN_QUEUE, f"there is no queue {path!r}")
    if not queue.row.is_leaf:
        raise ProblemError(Code.NOT_A_LEAF, f"queue {path!r} has queues below it; files are of one of those")
    return int(queue.id)


async def check_named(tx: Transaction, named_files: Iterable[NamedFiles], queues: Mapping[str, int]) -> None:
    """Check that queues have the files that their new jobs name, and note that these are used.

    Raises ProblemError UNKNOWN_FILES with each mistake.
    """
    wanted = list(named_files)
    mistakes: list[Mistake] = []
    for path in sorted({one.queue for one in wanted}):
        of_queue = [one for one in wanted if one.queue == path]
        found = await store.find(tx, queues[path], {one.sha256 for one in of_queue})
        mistakes += (
            Mistake(
                path=one.path,
                message=f"queue {path!r} has no files {named(one.sha256)}; upload them with: trainmaster submit --files",
            )
            for one in of_queue
            if one.sha256 not in found
        )
    if mistakes:
        raise ProblemError(
            Code.UNKNOWN_FILES, f"{mistakes[0].path}: {mistakes[0].message}", mistakes=tuple(mistakes[:100])
        )
