"""A link that can be cut: a TCP proxy between an agent and the apis."""

import asyncio
import contextlib
import threading
from collections.abc import Sequence


class Link:
    """Listens on a port of its own and passes connections on to the first target that answers."""

    def __init__(self, targets: Sequence[int]) -> None:
        self._targets = tuple(targets)
        self._open = True
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self.port = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait(5)

    def cut(self) -> None:
        """Drop all connections and refuse new ones."""
        self._loop.call_soon_threadsafe(self._cut)

    def mend(self) -> None:
        self._open = True

    def close(self) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def _cut(self) -> None:
        self._open = False
        for writer in self._writers:
            writer.transport.abort()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._open:
            writer.transport.abort()
            return
        for port in self._targets:
            with contextlib.suppress(OSError):
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
                break
        else:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        try:
            await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))
        finally:
            self._writers -= {writer, far_writer}

    async def _pass(self, source: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(OSError, RuntimeError):
            writer.close()
