"""Entry points of images that were pushed to the registry of the project distribution, by the program of the init container.

The program ``registry`` is looked for in the folder of ``KUBEBUILDER_ASSETS`` and on the PATH. Tokens are signed here, and verified by
it.
"""

import gzip
import hashlib
import http.client
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from tests.image_registry import DOCKER, OCI
from tests.local_server import Answer, serving
from tests.waiting import eventually_sync
from trainmaster_agent.images.credentials import RegistryCredentials
from trainmaster_agent.images.program import REFUSED
from trainmaster_agent.images.registry import architecture_of
from trainmaster_dispatcher.cli.embedded import free_port


def _program() -> str | None:
    folders = (os.environ.get("KUBEBUILDER_ASSETS", ""), os.environ.get("PATH", ""))
    found = shutil.which("registry", path=os.pathsep.join(one for one in folders if one))
    if found is None:
        return None
    named = subprocess.run([found, "--version"], text=True, capture_output=True, check=False, timeout=60)
    return found if "distribution/distribution" in named.stdout else None


PROGRAM = _program()
if PROGRAM is None:
    pytest.skip("neither KUBEBUILDER_ASSETS nor PATH has the program registry of distribution", allow_module_level=True)

USER, PASSWORD = "reader", "password"
BASIC = RegistryCredentials(USER, PASSWORD).basic
_HASH = "$2a$10$2b2cU8CPhOTaGrs1HRQuAueS7JTT5ZHsHSzYiFPm1leZck7Mc8T4W"
REPOSITORY = "team/train"
CONFIG = {
    "architecture": "amd64",
    "os": "linux",
    "config": {"Entrypoint": ["/usr/bin/train", "--fast"], "Cmd": ["--all"], "WorkingDir": "/work", "Env": ["A=1"]},
    "history": [{"created_by": "ENTRYPOINT"}],
}


class TokenService:
    """Gives tokens for what is asked, to the one user, and to everybody for reading where that is open."""

    def __init__(self, *, is_open: bool) -> None:
        self.is_open = is_open
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.given = 0

    def jwks(self) -> dict[str, Any]:
        return {"keys": [json.loads(ECAlgorithm.to_jwk(self.key.public_key())) | {"kid": "k1", "alg": "ES256"}]}

    def token(self, query: dict[str, str], authorization: str | None) -> str | None:
        is_user = authorization == BASIC
        if not is_user and (authorization or not self.is_open):
            return None
        kind, name, actions = query["scope"].split(":")
        allowed = actions.split(",") if is_user else ["pull"]
        now = int(time.time())
        claims = {
            "iss": "tests",
            "sub": USER if is_user else "",
            "aud": query["service"],
            "jti": str(self.given),
            "iat": now,
            "nbf": now - 10,
            "exp": now + 600,
            "access": [{"type": kind, "name": name, "actions": allowed}],
        }
        self.given += 1
        return jwt.encode(claims, self.key, "ES256", headers={"kid": "k1"})


@contextmanager
def served(service: TokenService) -> Iterator[str]:
    def answer(call: BaseHTTPRequestHandler) -> Answer:
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(call.path).query))
        found = service.token(query, call.headers.get("Authorization"))
        return (401, {}, b"{}") if found is None else (200, {}, json.dumps({"token": found}).encode())

    with serving(answer) as url:
        yield f"{url}/token"


@contextmanager
def running(folder: Path, auth: dict[str, Any] | None = None) -> Iterator[str]:
    """Run the registry with its blobs in a folder; yield its host."""
    port = free_port()
    config: dict[str, Any] = {
        "version": 0.1,
        "log": {"level": "info", "accesslog": {"disabled": False}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "blobs")}},
        "http": {"addr": f"127.0.0.1:{port}"},
    }
    file = folder / "config.yml"
    file.write_text(yaml.safe_dump(config | ({} if auth is None else {"auth": auth})))
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen([str(PROGRAM), "serve", str(file)], stdout=log, stderr=log)
    try:
        eventually_sync(lambda: _answers(port), 30)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/v2/")
        return connection.getresponse().status in (200, 401)
    except OSError:
        return False
    finally:
        connection.close()


class Pusher:
    """Pushes images to a registry, as a user who may."""

    def __init__(self, host: str, headers: dict[str, str] | None = None) -> None:
        self.http = httpx.Client(base_url=f"http://{host}", headers=headers or {}, timeout=30)

    def blob(self, body: bytes) -> dict[str, Any]:
        begun = self.http.post(f"/v2/{REPOSITORY}/blobs/uploads/")
        assert begun.status_code == 202, begun.text
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        put = self.http.put(httpx.URL(begun.headers["Location"]).copy_add_param("digest", digest), content=body)
        assert put.status_code == 201, put.text
        return {"digest": digest, "size": len(body)}

    def image(self, config: dict[str, Any], tag: str, *, of: str) -> dict[str, Any]:
        """Push an image with one layer. ``of``: whose types it has."""
        is_oci = of == OCI
        types = {
            "manifest": f"{OCI}.manifest.v1+json" if is_oci else f"{DOCKER}.distribution.manifest.v2+json",
            "config": f"{OCI}.config.v1+json" if is_oci else f"{DOCKER}.container.image.v1+json",
            "layer": f"{OCI}.layer.v1.tar+gzip" if is_oci else f"{DOCKER}.image.rootfs.diff.tar.gzip",
        }
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            archive.addfile(tarfile.TarInfo("etc/empty"), io.BytesIO())
        document = {
            "schemaVersion": 2,
            "mediaType": types["manifest"],
            "config": {"mediaType": types["config"], **self.blob(json.dumps(config).encode())},
            "layers": [{"mediaType": types["layer"], **self.blob(gzip.compress(packed.getvalue()))}],
        }
        return self.manifest(document, tag)

    def manifest(self, document: dict[str, Any], tag: str) -> dict[str, Any]:
        body = json.dumps(document).encode()
        kind = document["mediaType"]
        put = self.http.put(f"/v2/{REPOSITORY}/manifests/{tag}", content=body, headers={"Content-Type": kind})
        assert put.status_code == 201, put.text
        return {"mediaType": kind, "digest": f"sha256:{hashlib.sha256(body).hexdigest()}", "size": len(body)}


def read(
    host: str, tmp_path: Path, version: str = ":1", password: str | None = None
) -> subprocess.CompletedProcess[str]:
    folder = tmp_path / "credentials"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    if password is not None:
        (folder / "00.json").write_text(json.dumps({"auths": {host: {"username": USER, "password": password}}}))
    (tmp_path / "entrypoint.json").unlink(missing_ok=True)
    argv = [sys.executable, "-m", "trainmaster_agent.images.program", "--image", f"{host}/{REPOSITORY}{version}"]
    argv += [
        "--file",
        str(tmp_path / "entrypoint.json"),
        "--folder",
        str(folder),
        "--registry",
        f"{host}=http://{host}",
    ]
    return subprocess.run(argv, text=True, capture_output=True, check=False, timeout=120)


def found_in(tmp_path: Path) -> Any:
    return json.loads((tmp_path / "entrypoint.json").read_text())


FOUND = {"entrypoint": ["/usr/bin/train", "--fast"], "cmd": ["--all"]}


def test_images_of_both_types_and_of_several_platforms_are_read(tmp_path: Path) -> None:
    with running(tmp_path) as host:
        pusher = Pusher(host)
        mine = pusher.image(CONFIG, "1", of=OCI)
        pusher.image(CONFIG, "docker", of=DOCKER)
        other = pusher.image(CONFIG | {"config": {"Cmd": ["other"]}}, "other", of=OCI)
        machine = architecture_of(os.uname().machine)
        platforms = [
            {**other, "platform": {"os": "linux", "architecture": "s390x"}},
            {**mine, "platform": {"os": "linux", "architecture": machine}},
        ]
        pusher.manifest({"schemaVersion": 2, "mediaType": f"{OCI}.index.v1+json", "manifests": platforms}, "several")
        for version in (":1", ":docker", ":several", f"@{mine['digest']}"):
            ended = read(host, tmp_path, version)
            assert ended.returncode == 0, ended.stderr
            assert found_in(tmp_path) == FOUND
        missing = read(host, tmp_path, ":2")
        assert missing.returncode == REFUSED
        assert missing.stderr.startswith(f"registry {host} does not have image {host}/{REPOSITORY}:2 (")


def test_a_registry_with_passwords(tmp_path: Path) -> None:
    (tmp_path / "htpasswd").write_text(f"{USER}:{_HASH}\n")
    auth = {"htpasswd": {"realm": "tests", "path": str(tmp_path / "htpasswd")}}
    with running(tmp_path, auth) as host:
        Pusher(host, {"Authorization": BASIC}).image(CONFIG, "1", of=OCI)
        ended = read(host, tmp_path, password=PASSWORD)
        assert ended.returncode == 0, ended.stderr
        assert found_in(tmp_path) == FOUND
        for password in (None, "other"):
            assert read(host, tmp_path, password=password).returncode == REFUSED


@pytest.mark.parametrize("is_open", [True, False])
def test_a_registry_with_tokens(tmp_path: Path, is_open: bool) -> None:
    service = TokenService(is_open=is_open)
    (tmp_path / "jwks.json").write_text(json.dumps(service.jwks()))
    with served(service) as realm:
        token = {"realm": realm, "service": "registry", "issuer": "tests", "jwks": str(tmp_path / "jwks.json")}
        with running(tmp_path, {"token": token}) as host:
            query = {"scope": f"repository:{REPOSITORY}:pull,push", "service": "registry"}
            pushes = service.token(query, BASIC)
            Pusher(host, {"Authorization": f"Bearer {pushes}"}).image(CONFIG, "1", of=OCI)
            ended = read(host, tmp_path, password=PASSWORD)
            assert ended.returncode == 0, ended.stderr
            assert found_in(tmp_path) == FOUND
            assert service.given == 2, "one token for the manifest and the configuration"
            assert (read(host, tmp_path).returncode == 0) is is_open
            refused = read(host, tmp_path, password="other")
            assert refused.returncode == REFUSED
            assert "does not let image" in refused.stderr
