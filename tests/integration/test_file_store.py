"""The file store: what every side of the port does, on a folder and on S3-compatible storage."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from importlib import import_module
from pathlib import Path

import httpx
import pytest

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster_dispatcher.store.file_store import (
    FileStore,
    FolderFileStore,
    S3FileStore,
    UploadMismatchError,
    check_files_url,
    open_file_store,
)

DATA = bytes(range(256)) * 5_000
DIGEST = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def object_storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An object storage of the S3 protocol with a bucket ``files``, in the environment's variables; yields its address."""
    server = import_module("moto.server").ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    for name, text in {
        "AWS_ENDPOINT_URL": url,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }.items():
        monkeypatch.setenv(name, text)
    assert httpx.put(f"{url}/files").status_code == 200
    yield url
    server.stop()


@pytest.fixture(params=["folder", "s3"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FileStore]:
    if request.param == "folder":
        yield FolderFileStore(tmp_path / "files")
        return
    request.getfixturevalue("object_storage")
    found = open_file_store(f"s3://files/{tmp_path.name}")  # servers of one process share what they store
    assert isinstance(found, S3FileStore)
    yield found


async def send(store: FileStore, upload: str, data: bytes) -> None:
    """Send an archive as clients do: to an address where there is one, in parts else."""
    url = await store.upload_url(upload)
    if url is None:
        half = len(data) // 2
        await store.write(upload, half, data[half:])
        await store.write(upload, 0, data[:half])
        return
    async with httpx.AsyncClient() as http:
        answer = await http.put(url, content=data)
    assert answer.status_code == 200, answer.text


async def fetched(store: FileStore, key: str) -> bytes:
    url = await store.download_url(key)
    if url is None:
        found = b""
        while part := await store.read(key, len(found), 100_000):
            found += part
        return found
    async with httpx.AsyncClient() as http:
        return (await http.get(url)).content


async def test_an_upload_becomes_an_archive_that_can_be_read_whole_and_in_parts(store: FileStore) -> None:
    await send(store, "u-1", DATA)
    await store.finish("u-1", "files/a", len(DATA), DIGEST)
    assert await fetched(store, "files/a") == DATA
    assert await store.read("files/a", 10, 5) == DATA[10:15]
    assert await store.read("files/a", len(DATA) - 3, 100) == DATA[-3:]
    assert await store.read("files/a", len(DATA), 100) == b""


@pytest.mark.parametrize(
    ("size", "digest", "words"),
    [(len(DATA) + 1, DIGEST, "bytes were uploaded, not"), (len(DATA), "0" * 64, "the SHA-256 of what was uploaded is")],
)
async def test_what_is_not_what_was_announced_becomes_no_archive(
    store: FileStore, size: int, digest: str, words: str
) -> None:
    await send(store, "u-1", DATA)
    with pytest.raises(UploadMismatchError, match=words):
        await store.finish("u-1", "files/a", size, digest)
    with pytest.raises(ProblemError) as found:
        await store.read("files/a", 0, 10)
    assert found.value.code is Code.NOT_FOUND
    await send(store, "u-1", DATA)
    await store.finish("u-1", "files/a", len(DATA), DIGEST)


async def test_an_upload_without_data_becomes_no_archive(store: FileStore) -> None:
    with pytest.raises(UploadMismatchError, match="nothing was uploaded"):
        await store.finish("u-1", "files/a", len(DATA), DIGEST)


async def test_what_is_sent_after_the_end_of_an_upload_changes_no_archive(store: FileStore) -> None:
    await send(store, "u-1", DATA)
    late = await store.upload_url("u-1")
    await store.finish("u-1", "files/a", len(DATA), DIGEST)
    if late is None:
        await store.write("u-1", 0, b"other")
    else:
        async with httpx.AsyncClient() as http:
            await http.put(late, content=b"other")
    assert await fetched(store, "files/a") == DATA


async def test_an_archive_is_what_was_verified_although_it_is_written_to_meanwhile(tmp_path: Path) -> None:
    """Parts come at the very moment of the end: each is in the archive before it is verified, or is in none."""
    store = FolderFileStore(tmp_path)
    for number in range(20):
        upload = f"u-{number}"
        await store.write(upload, 0, DATA)
        ending = asyncio.create_task(store.finish(upload, f"files/{number}", len(DATA), DIGEST))
        late = [asyncio.create_task(store.write(upload, 0, b"other")) for _ in range(3)]
        outcomes = await asyncio.gather(ending, *late, return_exceptions=True)
        if outcomes[0] is None:
            assert await store.read(f"files/{number}", 0, 5) == DATA[:5]
        else:
            assert isinstance(outcomes[0], UploadMismatchError)


async def test_data_is_removed_and_what_is_missing_is_left_alone(store: FileStore) -> None:
    await send(store, "u-1", DATA)
    await store.finish("u-1", "files/a", len(DATA), DIGEST)
    await store.delete(["files/a", "files/none", "u-1"])
    with pytest.raises(ProblemError) as found:
        await store.read("files/a", 0, 10)
    assert found.value.code is Code.NOT_FOUND


async def test_addresses_name_no_credentials_and_end(object_storage: str) -> None:
    store = S3FileStore.open("s3://files/some/prefix")
    url = await store.upload_url("u-1")
    assert url is not None
    assert url.startswith(f"{object_storage}/files/some/prefix/u-1?")
    assert "X-Amz-Expires=3600" in url
    assert "AWS_SECRET" not in url


async def test_a_store_that_cannot_be_used_is_a_problem_to_retry_without_addresses(
    object_storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    store = S3FileStore.open("s3://files/x")
    with pytest.raises(ProblemError) as found:
        await asyncio.wait_for(store.read("files/a", 0, 1), 120)
    assert found.value.code is Code.STORE_AWAY
    assert "X-Amz" not in found.value.detail


@pytest.mark.parametrize("url", ["http://x/y", "s3://", "file://", "file://host/path", "folder", "gs://bucket"])
def test_the_address_of_a_file_store_is_checked(url: str) -> None:
    with pytest.raises(ValueError, match="file:///FOLDER or s3://BUCKET/PREFIX"):
        check_files_url(url)


def test_without_a_setting_there_is_none() -> None:
    assert open_file_store("") is None
