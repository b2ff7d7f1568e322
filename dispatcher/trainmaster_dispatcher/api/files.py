"""Routes of jobs' files: uploads and artifacts for users, inputs and outputs of runs for agents."""

from typing import Annotated

from fastapi import Path, Query, Request, Response
from pydantic import BaseModel

from trainmaster.protocol.agent import Empty, SessionName
from trainmaster.protocol.errors import Code
from trainmaster.protocol.files import (
    PART_BYTES,
    ArtifactAnswer,
    ArtifactsOfJob,
    FilesCall,
    FilesProblem,
    OutputFilesAnswer,
    OutputFilesSpec,
    OutputName,
    RunFiles,
    UploadAnswer,
    UploadedPart,
    UploadSpec,
)
from trainmaster_dispatcher.api.context import Agent, App, JobReader, JobSubmitter, answer, note, read_model
from trainmaster_dispatcher.api.openapi import contract, documented_router
from trainmaster_dispatcher.api.parameters import Attempt, JobId
from trainmaster_dispatcher.services import artifacts, files, run_files
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.files import Upload

router = documented_router("/v1", "files")
agents_router = documented_router("/agent/v1/files", "agents")

UploadId = Annotated[str, Path(max_length=100, description="Id of the upload.")]
RunId = Annotated[str, Path(description="Id of the run.")]
Offset = Annotated[int, Query(ge=0, le=2**62, description="Offset of the part in the archive, in bytes.")]
PartLimit = Annotated[int, Query(ge=1, le=PART_BYTES, description="The most bytes of the part.")]
AgentSession = Annotated[SessionName, Query(description="Session of the agent, as in its syncs.")]
ArtifactName = Annotated[OutputName, Path(description="Name of the artifact.")]
_BYTES = "application/octet-stream"
_STORED = (Code.FILES_OFF,)
_SESSION = (Code.SESSION_SUPERSEDED, Code.CLUSTER_HELD)


def _shown(model: BaseModel) -> Response:
    return answer(model.model_dump(mode="json", by_alias=True, exclude_none=True))


def _data(data: bytes) -> Response:
    return Response(data, media_type=_BYTES, headers={"Cache-Control": "no-store"})


@router.post(
    "/files",
    **contract(
        takes=UploadSpec,
        gives=UploadAnswer,
        refuses=(Code.UNKNOWN_QUEUE, Code.NOT_A_LEAF, Code.FILES_FULL, *_STORED),
    ),
)
async def begin_upload(request: Request, state: App, caller: JobSubmitter) -> Response:
    """Begin to upload files for the jobs of a queue. Where the queue has them already, there is nothing to send."""
    spec = read_model(UploadSpec, await request.body())
    return _shown(await files.begin(state.stores, caller, spec))


@router.put(
    "/files/{upload}",
    **contract(takes_bytes=True, gives=UploadedPart, refuses=(Code.UPLOAD_MISMATCH, *_STORED)),
)
async def write_upload(
    upload: UploadId, request: Request, state: App, caller: JobSubmitter, offset: Offset = 0
) -> Response:
    """Write a part of an upload that has no address of its own. Repeating it changes nothing."""
    data = await request.body()
    return _shown(UploadedPart(next=await files.write(state.stores, caller, upload, offset, data)))


@router.post(
    "/files/{upload}/finish",
    **contract(gives=UploadAnswer, refuses=(Code.UPLOAD_MISMATCH, Code.FILES_FULL, *_STORED)),
)
async def finish_upload(upload: UploadId, state: App, caller: JobSubmitter) -> Response:
    """Verify an upload: from now on jobs of the queue may name its files."""

    async def noted(tx: Transaction, done: Upload) -> None:
        await note(tx, caller, "upload files", done.queue, {"sha256": done.sha256, "size": done.size})

    return _shown(await files.finish(state.stores, caller, upload, noted))


@router.get("/jobs/{job_id}/artifacts", **contract(gives=ArtifactsOfJob))
async def list_artifacts(job_id: JobId, state: App, caller: JobReader, attempt: Attempt | None = None) -> Response:
    """List the artifacts of a job's last run: the outputs that it has left."""
    async with state.stores.database.reading() as tx:
        found = await artifacts.listed(tx, caller, job_id, attempt)
    return _shown(found)


@router.get("/jobs/{job_id}/artifacts/{artifact}", **contract(gives=ArtifactAnswer, refuses=_STORED))
async def show_artifact(
    job_id: JobId, artifact: ArtifactName, state: App, caller: JobReader, attempt: Attempt | None = None
) -> Response:
    """Return an artifact and where its archive is read: at an address that is valid for some minutes, or here in parts."""
    return _shown(await artifacts.show(state.stores, caller, job_id, artifact, attempt))


@router.get("/jobs/{job_id}/artifacts/{artifact}/data", **contract(media_type=_BYTES, refuses=_STORED))
async def read_artifact(
    job_id: JobId,
    artifact: ArtifactName,
    state: App,
    caller: JobReader,
    attempt: Attempt | None = None,
    offset: Offset = 0,
    limit: PartLimit = PART_BYTES,
) -> Response:
    """Return a part of an artifact's archive, a gzipped tar file; nothing behind its end."""
    return _data(await artifacts.read(state.stores, caller, job_id, artifact, attempt, offset, limit))


# Agents


@agents_router.get("/{run}", **contract(gives=RunFiles, refuses=(*_SESSION, *_STORED)))
async def show_run_files(run: RunId, state: App, caller: Agent, session: AgentSession) -> Response:
    """Return the inputs of a live run, with addresses that are valid for some minutes, and its outputs."""
    return _json(await run_files.state(state.stores, caller, run, session))


@agents_router.get("/{run}/inputs/{number}", **contract(media_type=_BYTES, refuses=(*_SESSION, *_STORED)))
async def read_run_input(
    run: RunId,
    number: Annotated[int, Path(ge=0, le=1000, description="Number of the input, from 0.")],
    state: App,
    caller: Agent,
    session: AgentSession,
    offset: Offset = 0,
    limit: PartLimit = PART_BYTES,
) -> Response:
    """Return a part of an input of a live run; nothing behind its end."""
    return _data(await run_files.read_input(state.stores, caller, run, session, number, offset, limit))


@agents_router.post(
    "/{run}/outputs",
    **contract(takes=OutputFilesSpec, gives=OutputFilesAnswer, refuses=(*_SESSION, *_STORED, Code.FILES_FULL)),
)
async def begin_run_output(run: RunId, request: Request, state: App, caller: Agent) -> Response:
    """Begin to store an output that a member of a live run has packed."""
    spec = read_model(OutputFilesSpec, await request.body())
    return _json(await run_files.begin_output(state.stores, caller, run, spec))


@agents_router.put(
    "/{run}/uploads/{upload}",
    **contract(takes_bytes=True, gives=UploadedPart, refuses=(*_SESSION, *_STORED, Code.UPLOAD_MISMATCH)),
)
async def write_run_output(
    run: RunId,
    upload: UploadId,
    request: Request,
    state: App,
    caller: Agent,
    session: AgentSession,
    offset: Offset = 0,
) -> Response:
    """Write a part of an output that has no address of its own."""
    data = await request.body()
    written = await run_files.write_output(state.stores, caller, run, session, upload, offset, data)
    return _json(UploadedPart(next=written))


@agents_router.post(
    "/{run}/uploads/{upload}",
    **contract(takes=FilesCall, gives=Empty, refuses=(*_SESSION, *_STORED, Code.UPLOAD_MISMATCH, Code.FILES_FULL)),
)
async def finish_run_output(run: RunId, upload: UploadId, request: Request, state: App, caller: Agent) -> Response:
    """Verify an output: it is the run's artifact of its name from now on."""
    body = read_model(FilesCall, await request.body())
    await run_files.finish_output(state.stores, caller, run, body.session, upload)
    return _json(Empty())


@agents_router.post("/{run}/problem", **contract(takes=FilesProblem, gives=Empty, refuses=_SESSION))
async def note_files_problem(run: RunId, request: Request, state: App, caller: Agent) -> Response:
    """Say why files of a live run were not fetched or stored; shown where the run fails."""
    body = read_model(FilesProblem, await request.body())
    await run_files.note_problem(state.stores, caller, run, body)
    return _json(Empty())


def _json(model: BaseModel) -> Response:
    return Response(model.model_dump_json(by_alias=True), media_type="application/json")
