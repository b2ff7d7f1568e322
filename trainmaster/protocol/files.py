"""Files of jobs: folders that members get before their commands start, outputs that they leave, and the calls about both."""

import re
from typing import Annotated, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from trainmaster.protocol.base import Lenient, QueuePath, Strict, Timestamp, bounded, example, worded_pattern

MOST_INPUTS, MOST_OUTPUTS = 16, 32
"""The most inputs and outputs of a job."""
PART_BYTES = 4 * 1024 * 1024
"""The most bytes of a part in which data passes through the dispatcher and an agent."""
_DIGEST = "[0-9a-f]{64}"
_LONGEST_PATH = 1024
_SEGMENT = re.compile(r"(^|/)\.\.?(/|$)")


def _inner_path(value: str) -> str:
    if value == ".":
        return value
    if value.startswith("/") or _SEGMENT.search(value) or "//" in value or value.endswith("/") or "\0" in value:
        raise ValueError(
            f"{value!r} is no path inside of the member's folder: it is relative, without '.' and '..' as parts, '//'"
            " and '/' at its end"
        )
    return value


InnerPath = Annotated[str, StringConstraints(min_length=1, max_length=_LONGEST_PATH), AfterValidator(_inner_path)]
"""A path inside of a member's folder; ``.`` is the folder itself."""
FilesName = Annotated[
    str,
    StringConstraints(
        max_length=71,
        pattern=worded_pattern(
            f"^sha256:{_DIGEST}$",
            "sha256: and 64 hexadecimal digits, as 'trainmaster submit --files' names what it uploads",
        ),
    ),
]
"""Name of an uploaded archive: its SHA-256."""
Digest = Annotated[
    str,
    StringConstraints(max_length=64, pattern=worded_pattern(f"^{_DIGEST}$", "a SHA-256 of 64 hexadecimal digits")),
]
OutputName = Annotated[
    str,
    StringConstraints(
        max_length=63,
        pattern=worded_pattern(
            r"^[a-z0-9]([-a-z0-9._]{0,61}[a-z0-9])?$", "lower-case letters, digits, '-', '.' and '_', such as model"
        ),
    ),
]
ByteCount = Annotated[int, Field(ge=0, le=2**62)]


def digest_of(name: str) -> str:
    """Return the SHA-256 in the name of uploaded files."""
    return name.removeprefix("sha256:")


def named(digest: str) -> str:
    """Return the name of uploaded files with this SHA-256."""
    return f"sha256:{digest}"


class JobInput(Strict):
    """Files that each member has in its folder before its command starts: uploaded ones, or an artifact of another job."""

    model_config = example(files=f"sha256:{'0' * 64}", path="code")

    files: FilesName | None = None
    """Name of an archive that was uploaded for the job's queue."""
    artifact: OutputName | None = None
    """Name of an artifact of the last run of ``job``. This job starts once that one has succeeded, unless ``after`` names it with
    another condition."""
    job: Annotated[str, StringConstraints(min_length=1, max_length=253)] | None = None
    """With ``artifact``: the job that leaves it, as ``after`` names jobs: its id, the name of another job of the same submission, or
    the name of an object in the job's queue."""
    path: InnerPath = "."
    """Folder for them, relative to the member's folder."""

    @model_validator(mode="after")
    def _is_one_of_these(self) -> Self:
        if (self.files is None) == (self.artifact is None):
            raise ValueError("needs exactly one of files and artifact")
        if (self.artifact is None) != (self.job is None):
            raise ValueError(
                "job goes with artifact, the name of what that job leaves"
                if self.artifact is None
                else "artifact needs job, the id of the job that leaves it; in a workflow step, the name of the step"
            )
        return self


class JobOutput(Strict):
    """A file or folder that the member of rank 0 leaves, which is stored as an artifact of the run."""

    model_config = example(name="model", path="out/model")

    name: OutputName
    """Name of the artifact, unique in the job."""
    path: InnerPath
    """File or folder, relative to the member's folder."""
    optional: bool = False
    """True if the run may succeed without it."""


JobInputs = Annotated[tuple[JobInput, ...], bounded(MOST_INPUTS)]
JobOutputs = Annotated[tuple[JobOutput, ...], bounded(MOST_OUTPUTS)]


class UploadSpec(Strict):
    """Files to be uploaded: an archive as ``trainmaster submit --files`` makes it."""

    model_config = example(queue="research/vision", sha256="0" * 64, size=18231)

    queue: QueuePath
    """Path of the queue whose jobs use them."""
    sha256: Digest
    """SHA-256 of the archive."""
    size: Annotated[int, Field(ge=1, le=2**62)]
    """Bytes of the archive."""


class UploadAnswer(Strict):
    """State of an upload."""

    model_config = example(
        files=f"sha256:{'0' * 64}", size=18231, stored=False, upload="u-3b0f7c1a9d2e4f58", partBytes=PART_BYTES
    )

    files: FilesName
    """Name by which jobs refer to the files."""
    size: ByteCount
    """Bytes of the archive."""
    stored: bool
    """True if the files are stored: there is nothing to do."""
    upload: str | None = None
    """Id of the upload, to send its data and to finish it."""
    url: str | None = None
    """Address to which the whole archive is sent by PUT, without the API key; null: it is sent here, in parts."""
    part_bytes: int | None = None
    """The most bytes of a part."""


class UploadedPart(Strict):
    """Answer to a part of an upload."""

    model_config = example(next=4194304)

    next: ByteCount
    """Offset of the byte after the part."""


class ArtifactView(Strict):
    """A stored output of a run: an archive."""

    model_config = example(name="model", attempt=1, size=481233, sha256="0" * 64, createdAt="2026-11-28T08:00:00.000Z")

    name: OutputName
    """Name of the output."""
    attempt: int
    """Attempt of the run that left it."""
    size: ByteCount
    """Bytes of the archive."""
    sha256: Digest
    """SHA-256 of the archive."""
    created_at: Timestamp
    """Time at which it was stored."""


class ArtifactsOfJob(Strict):
    """Artifacts of a job: of the run that counts."""

    model_config = example(
        job="bert-7k2p9xq",
        attempt=1,
        artifacts=[
            {
                "name": "model",
                "attempt": 1,
                "size": 481233,
                "sha256": "0" * 64,
                "createdAt": "2026-11-28T08:00:00.000Z",
            }
        ],
    )

    job: str
    """Id of the job."""
    attempt: int
    """Attempt whose artifacts these are; 0: the job has not started yet."""
    artifacts: tuple[ArtifactView, ...]
    """Artifacts, by name."""


class ArtifactAnswer(ArtifactView):
    """An artifact, and where its data is."""

    model_config = example(
        name="model",
        attempt=1,
        size=481233,
        sha256="0" * 64,
        createdAt="2026-11-28T08:00:00.000Z",
        partBytes=PART_BYTES,
    )

    url: str | None = None
    """Address of the archive, which needs no API key and is valid for some minutes; null: it is read here, in parts."""
    part_bytes: int | None = None
    """The most bytes of a part."""


# Between agent and dispatcher


class FetchedInput(Lenient):
    """An input of a run."""

    path: str
    """Folder for it, relative to the member's folder."""
    sha256: str
    """SHA-256 of the archive."""
    size: int
    """Bytes of the archive."""
    url: str | None = None
    """Address of the archive; null: the dispatcher sends it in parts."""


class WantedOutput(Lenient):
    """An output that a run leaves."""

    name: str
    """Name of the output."""
    path: str
    """File or folder, relative to the member's folder."""
    optional: bool = False
    """True if the run may succeed without it."""


class RunFiles(Lenient):
    """Inputs and outputs of a live run, for the agent that has it."""

    model_config = example(
        token="c2VjcmV0",  # noqa: S106 - an example
        inputs=[{"path": ".", "sha256": "0" * 64, "size": 18231}],
        outputs=[{"name": "model", "path": "out/model"}],
    )

    token: str
    """Secret by which the run's members call the agent."""
    inputs: tuple[FetchedInput, ...] = ()
    """Inputs, in the order of the specification."""
    outputs: tuple[WantedOutput, ...] = ()
    """Outputs."""


_Session = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class OutputFilesSpec(Lenient):
    """An output that a member has packed."""

    model_config = example(session="b1c5e0f2", name="model", size=481233, sha256="0" * 64)

    session: _Session
    """Session of the agent, as in its syncs."""
    name: OutputName
    """Name of the output."""
    size: ByteCount
    """Bytes of the archive."""
    sha256: Digest
    """SHA-256 of the archive."""


class OutputFilesAnswer(Lenient):
    """Where the archive of an output is to be sent."""

    model_config = example(upload="u-3b0f7c1a9d2e4f58")

    upload: str | None = None
    """Id of the upload; null: the same archive is stored already."""
    url: str | None = None
    """Address to which it is sent by PUT; null: the dispatcher takes it in parts."""


class FilesCall(Lenient):
    """A call about the files of a run that says nothing more."""

    model_config = example(session="b1c5e0f2")

    session: _Session
    """Session of the agent, as in its syncs."""


class FilesProblem(Lenient):
    """A reason why files of a run were not fetched or stored."""

    model_config = example(session="b1c5e0f2", message="the output model was not stored: out/model does not exist")

    session: _Session
    """Session of the agent, as in its syncs."""
    message: Annotated[str, StringConstraints(max_length=1000)]
    """Sentence for people."""


def check_outputs(outputs: tuple[JobOutput, ...]) -> None:
    """Raise ValueError where two outputs have the same name."""
    names = [one.name for one in outputs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two outputs have the name {name!r}")


class MemberFiles(Lenient):
    """The way in which members of a run reach their agent for their files; the agent itself sets it, for its runtime."""

    url: str
    """Address of the run's files at the agent."""
    token: str
    """Secret by which its members call it."""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if not self.url or not self.token:
            raise ValueError("url and token must not be empty")
        return self
