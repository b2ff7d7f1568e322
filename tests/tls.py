"""An address over TLS before a server without it: kubectl sends its token over nothing else."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

OPENSSL = shutil.which("openssl")


@asynccontextmanager
async def served_over_tls(url: str, folder: Path) -> AsyncIterator[tuple[str, Path]]:
    """Serve what answers at ``url`` over TLS; give the address and its certificate."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    made = [str(OPENSSL), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    made += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)  # noqa: ASYNC221
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    behind = urlsplit(url)

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_api, to_api = await asyncio.open_connection(behind.hostname, behind.port)
        await asyncio.gather(_copied(reader, to_api), _copied(from_api, writer))

    server = await asyncio.start_server(forward, "127.0.0.1", 0, ssl=context)
    yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", certificate
    server.close()


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
