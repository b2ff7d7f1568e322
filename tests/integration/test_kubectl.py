"""The Kubernetes API as kubectl reads it, over TLS, as kubectl sends its token over nothing else."""

import asyncio
import json
import os
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from tests.conftest import Service
from tests.unit.fake_api import run

KUBECTL = shutil.which("kubectl", path=os.environ.get("KUBEBUILDER_ASSETS", ""))
OPENSSL = shutil.which("openssl")
if KUBECTL is None or OPENSSL is None:
    pytest.skip("KUBEBUILDER_ASSETS has no kubectl, or there is no openssl", allow_module_level=True)

Kubectl = Callable[..., Awaitable[str]]


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@pytest.fixture
async def kubectl(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kubectl]:
    """Return a function that runs kubectl with the kubeconfig of the command line, and returns what it wrote."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = [str(OPENSSL), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    made += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)  # noqa: ASYNC221
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    behind = urlsplit(service.url)

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_api, to_api = await asyncio.open_connection(behind.hostname, behind.port)
        await asyncio.gather(_copied(reader, to_api), _copied(from_api, writer))

    server = await asyncio.start_server(forward, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    written = run(
        "--url", f"https://127.0.0.1:{port}", "--key", service.http.headers["authorization"][7:], "kubeconfig"
    )
    assert written.exit_code == 0, written.stderr
    config = tmp_path / "kubeconfig"
    config.write_text(written.stdout)

    async def call(*words: str, code: int = 0) -> str:
        process = await asyncio.create_subprocess_exec(
            str(KUBECTL),
            *words,
            env={"KUBECONFIG": str(config), "HOME": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        out, _ = await process.communicate()
        assert process.returncode == code, out.decode()
        return out.decode()

    yield call
    server.close()


async def test_kubectl_reads_everything(service: Service, kubectl: Kubectl) -> None:
    await service.http.put("/v1/queues/research", json={"path": "research"})
    await service.http.put("/v1/queues/research/vision", json={"path": "research/vision"})
    first = await service.submit("first", "research/vision", labels={"team": "a"})
    second = await service.submit("second", labels={"team": "b"})
    for words, expected in {
        ("api-resources",): "jobpriorityclasses",
        ("api-versions",): "trainmaster.dev/v1",
        ("get", "jobs", "-A"): first,
        ("get", "tj", "-A", "-o", "wide"): second,
        ("get", "jobs.trainmaster.dev", "-n", "research-vision"): first,
        ("get", "jobs", "-n", "research-vision", "-l", "team=b"): "No resources found in research-vision namespace.",
        ("get", "jobs", "-A", "--field-selector", "status.state=queued"): first,
        ("get", "job", first, "-n", "research-vision", "-o", "yaml"): "generateName: first-",
        ("get", "jobs", "-A", "-o", "name"): f"job.trainmaster.dev/{second}",
        ("get", "jobs", "-A", "-o", "jsonpath={.items[*].status.state}"): "queued queued",
        ("get", "jobs", "-A", "-o", "custom-columns=N:.metadata.generateName,Q:.spec.queue"): "second-   default",
        ("get", "jobs", "-A", "--sort-by", ".metadata.generateName", "--no-headers"): first,
        ("get", "jobs", "-A", "--show-labels"): "team=a",
        ("get", "queues"): "research.vision",
        ("get", "queue", "research.vision", "-o", "json"): '"path": "research/vision"',
        ("get", "clusters", "-o", "wide"): "AGENT",
        ("get", "jpc"): "PREEMPTIBLE",
        ("get", "ns"): "research-vision",
        ("get", "trainmaster", "-A"): "queue.trainmaster.dev/research.vision",
        ("describe", "job", first, "-n", "research-vision"): "Generate Name:",
        ("describe", "queue", "research"): "Kind:         Queue",
        ("explain", "jobs.spec.roles"): "Identical members of a job",
        ("explain", "queues.spec.weight"): "FIELD: weight",
        ("version", "-o", "json"): "trainmaster",
        ("get", "--raw", "/openapi/v3"): "serverRelativeURL",
    }.items():
        assert expected in await kubectl(*words), words


async def test_kubectl_pages_through_many_jobs(service: Service, kubectl: Kubectl) -> None:
    roles = [{"name": "main", "template": {"command": ["true"]}}]
    jobs = [{"kind": "Job", "name": f"j{number}", "queue": "default", "roles": roles} for number in range(250)]
    assert (await service.http.post("/v1/jobs", json={"jobs": jobs})).status_code == 201
    assert len((await kubectl("get", "jobs", "-A", "--chunk-size", "40", "--no-headers")).splitlines()) == 250
    assert len(json.loads(await kubectl("get", "jobs", "-A", "-o", "json"))["items"]) == 250
    assert len(list(yaml.safe_load(await kubectl("get", "jobs", "-n", "default", "-o", "yaml"))["items"])) == 250


async def test_kubectl_says_what_is_wrong(service: Service, kubectl: Kubectl) -> None:
    for words, expected in {
        (
            "get",
            "job",
            "none-0000000",
            "-n",
            "default",
        ): 'Error from server (NotFound): jobs.trainmaster.dev "none-0000000" not found',
        ("get", "queue", "none"): 'Error from server (NotFound): queues.trainmaster.dev "none" not found',
        ("get", "pods"): 'the server doesn\'t have a resource type "pods"',
        ("get", "jobs", "-A", "-l", "team in (a,b)"): "jobs are selected by key=value here",
        ("get", "jobs", "-A", "--field-selector", "spec.x=y"): "jobs are not selected by 'spec.x'",
        ("delete", "queue", "default", "--wait=false"): "(MethodNotAllowed)",
        ("get", "jobs", "-A", "-w"): "it has no watch yet",
    }.items():
        assert expected in await kubectl(*words, code=1), words
