"""Reading of agents' bodies: small ones at once, large ones one after the other in a thread, so that other calls go on meanwhile.

Reading a large body checks its reports one by one in Python, so the event loop gets its turns between them. A process would not do:
its answer, thousands of models, would have to be read again, which takes as long.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from trainmaster_dispatcher.services.submission_parsing import without_nul

_SMALL = 65_536
"""The most bytes of a body that is read at once: even the worst one takes about 0.05 s."""

Read = TypeVar("Read")


class AgentBodies:
    """The reader of the bodies of one process. One large body is read at a time, so that the memory for it is bounded."""

    def __init__(self, small: int = _SMALL) -> None:
        self._small = small
        self._thread = ThreadPoolExecutor(1, "agents-bodies")

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def read(self, body: bytes, read: Callable[[bytes], Read]) -> Read:
        """Return what ``read`` makes of a body without NUL characters; raise what it raises."""
        if len(body) <= self._small:
            return read(without_nul(body))
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: read(without_nul(body)))
