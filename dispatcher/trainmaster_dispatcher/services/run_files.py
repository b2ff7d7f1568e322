"""Calls of agents about the files of their runs: inputs that members fetch, and outputs that are stored once for each run.

Each call is checked anew: only the agent that has the run learns of its files, and only while the run is live.
"""

import hmac
import secrets
from typing import NamedTuple

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.files import (
    FetchedInput,
    FilesProblem,
    JobInput,
    JobOutput,
    OutputFilesAnswer,
    OutputFilesSpec,
    RunFiles,
    WantedOutput,
    digest_of,
)
from trainmaster.protocol.ids import BadIdError, RunRef, job_id, parse_run_id
from trainmaster_dispatcher.services.agents import superseded
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.files import (
    beyond_bound,
    check_free,
    check_part,
    check_size,
    file_store,
    new_key,
    new_upload_id,
    verified,
)
from trainmaster_dispatcher.store import agents
from trainmaster_dispatcher.store import files as store
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.keys import Caller

_NOTHING = "0" * 64
"""A SHA-256 that no archive has."""


class HeldRun(NamedTuple):
    """A live run of the caller's cluster, with its files."""

    ref: RunRef
    queue_id: int
    queue: str
    inputs: tuple[JobInput, ...]
    outputs: tuple[JobOutput, ...]


async def _held(tx: Transaction, caller: Caller, run: str, session: str) -> HeldRun:
    """Return a live run on the caller's cluster. Raises ProblemError NOT_FOUND, FORBIDDEN and SESSION_SUPERSEDED."""
    if caller.cluster_id is None:
        raise ProblemError(Code.FORBIDDEN, "only an agent's key opens the agent calls")
    if not await agents.is_current(tx, caller.cluster_id, session):
        raise superseded()
    try:
        ref = parse_run_id(run)
    except BadIdError as error:
        raise ProblemError(Code.NOT_FOUND, f"{run!r} is not the id of a run") from error
    found = await store.run_with_files(tx, ref, caller.cluster_id)
    if found is None:
        raise ProblemError(Code.NOT_FOUND, f"this cluster has no run {run!r} with files")
    if not found.is_live or found.is_stopping:
        raise ProblemError(Code.NOT_FOUND, f"run {run!r} has ended, or is being stopped")
    return HeldRun(
        ref,
        found.queue_id,
        found.queue,
        tuple(JobInput.model_validate(one) for one in found.inputs or ()),
        tuple(JobOutput.model_validate(one) for one in found.outputs or ()),
    )


async def state(stores: Stores, caller: Caller, run: str, session: str) -> RunFiles:
    """Return a live run's inputs, with addresses that are valid for some minutes, and its outputs. Raises ProblemError.

    An input that is not stored is among them, without an address: its members learn that when they read it, and the run fails with the
    reason. If this call were refused, its agent would not start the run, and try that again and again.
    """
    files = file_store(stores)
    async with stores.database.transaction() as tx:
        held = await _held(tx, caller, run, session)
        required = [one.name for one in held.outputs if not one.optional]
        token = await store.token_of_run(tx, held.ref, secrets.token_urlsafe(32), required)
        found = await _archives(tx, held)
    inputs = [
        FetchedInput(path=one.path, sha256=_NOTHING, size=1)
        if isinstance(stored, str)
        else FetchedInput(
            path=one.path, sha256=stored.sha256, size=stored.size, url=await files.download_url(stored.key)
        )
        for one, stored in zip(held.inputs, found, strict=True)
    ]
    outputs = tuple(WantedOutput(name=one.name, path=one.path, optional=one.optional) for one in held.outputs)
    return RunFiles(token=token, inputs=tuple(inputs), outputs=outputs)


async def _archives(tx: Transaction, held: HeldRun) -> list[store.StoredFiles | str]:
    """Return the archive of each input of a run, or why there is none."""
    digests = {digest_of(one.files) for one in held.inputs if one.files is not None}
    uploaded = await store.look_up(tx, held.queue_id, digests) if digests else {}
    artifacts: dict[int, store.ArtifactInput] = {}
    if any(one.files is None for one in held.inputs):
        artifacts = {one.input: one for one in await store.artifact_inputs_of(tx, held.ref.job_key)}
    return [
        _artifact(one, artifacts.get(number))
        if one.files is None
        else uploaded.get(digest_of(one.files)) or f"the files {one.files} are not stored any more"
        for number, one in enumerate(held.inputs)
    ]


def _artifact(one: JobInput, found: store.ArtifactInput | None) -> store.StoredFiles | str:
    if found is None or found.job is None:
        return f"job {one.job}, whose artifact {one.artifact!r} is an input, was removed"
    if found.sha256 is None or found.size is None or found.key is None:
        return f"the last run of job {job_id(found.job, found.on_job_id)} has left no artifact {found.name!r}"
    return store.StoredFiles(found.sha256, found.size, found.key)


async def read_input(
    stores: Stores, caller: Caller, run: str, session: str, number: int, offset: int, limit: int
) -> bytes:
    """Return a part of an input, by its number from 0. Raises ProblemError."""
    files = file_store(stores)
    async with stores.database.reading() as tx:
        held = await _held(tx, caller, run, session)
        found = await _archives(tx, held) if number < len(held.inputs) else []
    stored = found[number] if found else f"run {run!r} has no input {number}"
    if isinstance(stored, str):
        raise ProblemError(Code.NOT_FOUND, stored)
    return await files.read(stored.key, offset, limit)


async def begin_output(stores: Stores, caller: Caller, run: str, spec: OutputFilesSpec) -> OutputFilesAnswer:
    """Begin to store an output of a live run. Raises ProblemError, FILES_FULL and BODY_TOO_LARGE among others."""
    files = file_store(stores)
    async with stores.database.transaction() as tx:
        held = await _held(tx, caller, run, spec.session)
        if all(one.name != spec.name for one in held.outputs):
            raise ProblemError(Code.NOT_FOUND, f"run {run!r} has no output {spec.name!r}")
        known = await store.artifact_of(tx, held.ref.job_key, held.ref.attempt, spec.name)
        if known is not None and hmac.compare_digest(known.sha256, spec.sha256):
            return OutputFilesAnswer()
        check_size(stores.settings, spec.size, f"the output {spec.name}")
        await check_free(tx, stores.settings, held.queue_id, held.queue, spec.size)
        upload = store.Upload(
            new_upload_id(),
            held.queue_id,
            held.queue,
            spec.sha256,
            spec.size,
            held.ref.job_key,
            held.ref.attempt,
            spec.name,
        )
        await store.begin_upload(tx, upload)
    return OutputFilesAnswer(upload=upload.id, url=await files.upload_url(upload.id))


async def _upload_of(tx: Transaction, held: HeldRun, upload_id: str) -> store.Upload:
    upload = await store.find_upload(tx, upload_id)
    if upload is None or (upload.job_id, upload.attempt) != (held.ref.job_key, held.ref.attempt):
        raise ProblemError(Code.NOT_FOUND, "the run has no such upload; begin a new one")
    return upload


async def write_output(
    stores: Stores, caller: Caller, run: str, session: str, upload_id: str, offset: int, data: bytes
) -> int:
    """Write a part of an output; return the offset behind it. Raises ProblemError."""
    files = file_store(stores)
    async with stores.database.reading() as tx:
        upload = await _upload_of(tx, await _held(tx, caller, run, session), upload_id)
    check_part(upload, offset, data)
    await files.write(upload.id, offset, data)
    return offset + len(data)


async def finish_output(stores: Stores, caller: Caller, run: str, session: str, upload_id: str) -> None:
    """Verify an output and make it the run's artifact, in place of an earlier one of its name. Raises ProblemError.

    Repeating the call changes nothing: the upload does not exist any more.
    """
    files = file_store(stores)
    async with stores.database.reading() as tx:
        held = await _held(tx, caller, run, session)
        upload = await _upload_of(tx, held, upload_id)
    key = new_key("artifacts")
    await verified(files, upload, key)
    async with stores.database.transaction() as tx:
        await store.lock_queue(tx, upload.queue_id)
        is_live = True
        try:
            await _held(tx, caller, run, session)
        except ProblemError:
            is_live = False
        if not await store.end_upload(tx, upload.id) or not is_live:
            await store.remove_later(tx, [key, upload.id])
            return
        await store.remove_later(tx, [upload.id])
        problem = await beyond_bound(tx, stores, upload, key)
        if problem is None:
            await store.put_artifact(tx, upload, key)
    if problem is not None:
        raise problem


async def note_problem(stores: Stores, caller: Caller, run: str, body: FilesProblem) -> None:
    """Store why files of a live run were not fetched or stored. Raises ProblemError."""
    async with stores.database.transaction() as tx:
        held = await _held(tx, caller, run, body.session)
        await store.note_problem(tx, held.ref, body.message)
