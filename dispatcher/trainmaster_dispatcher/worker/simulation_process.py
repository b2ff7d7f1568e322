"""A simulation in a process of its own, so that it takes no time from the side jobs of its worker, and may be ended at any moment.

``python -m trainmaster_dispatcher.worker.simulation_process`` reads an order from the first line of its standard input
and writes lines of JSON: ``{"progress": ...}`` from time to time, and at last ``{"result": ..., "report": ...}`` or
``{"problem": ...}``. It ends when its standard input does, because then its worker has ended.
"""

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
from pydantic import ValidationError

from trainmaster.protocol.errors import ProblemError
from trainmaster.protocol.simulations import SimulationOrder, SimulationProgress

_TELL_SECONDS = 0.5
_LONGEST_LINE = 256 * 1024 * 1024
_POLITENESS = 10
_LAST_WORDS = 2000


@dataclass(slots=True)
class Heard:
    """The reports of such a process so far. ``problem``: why it cannot be done; if ``result`` and ``problem`` are
    empty, it died."""

    progress: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] | None = None
    report: str = ""
    problem: str = ""
    code: int | None = None
    """The process's exit code, once it has ended."""
    said: str = ""
    """The end of what it wrote on standard error."""


async def run_apart(order: SimulationOrder, goes_on: Callable[[Heard], Awaitable[bool]], every: float) -> Heard | None:
    """Run a simulation in another process. ``goes_on`` is called every ``every`` seconds; return None if it returned False."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", __name__),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=_LONGEST_LINE,
        start_new_session=True,  # a signal to its worker's group must not end it: the worker ends it and releases the claim
    )
    heard = Heard()
    listening = asyncio.gather(_hand_over(process, order), _listen(process, heard), _keep_words(process, heard))
    try:
        while not (await asyncio.wait({listening}, timeout=every))[0]:
            if not await goes_on(heard):
                return None
        await listening
        heard.code = await process.wait()
        return heard
    finally:
        listening.cancel()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        with contextlib.suppress(asyncio.CancelledError):
            await listening
        await process.wait()


async def _hand_over(process: asyncio.subprocess.Process, order: SimulationOrder) -> None:
    """Send the order. The pipe stays open: its end would end the process."""
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.write(await asyncio.to_thread(_line_of, order))
            await process.stdin.drain()


def _line_of(order: SimulationOrder) -> bytes:
    return orjson.dumps(order.model_dump(mode="json", by_alias=True)) + b"\n"


async def _listen(process: asyncio.subprocess.Process, heard: Heard) -> None:
    if process.stdout is None:
        return
    async for line in process.stdout:
        said = orjson.loads(line)
        heard.progress = said.get("progress", heard.progress)
        heard.result = said.get("result", heard.result)
        heard.report = said.get("report", heard.report)
        heard.problem = said.get("problem", heard.problem)


async def _keep_words(process: asyncio.subprocess.Process, heard: Heard) -> None:
    if process.stderr is not None:
        while piece := await process.stderr.read(65_536):
            heard.said = (heard.said + piece.decode(errors="replace"))[-_LAST_WORDS:]


def main() -> None:
    # Imported here, as workers import this module, too, and simulate nothing themselves.
    from trainmaster_dispatcher.whatif.scenario import scenario, simulate

    os.nice(_POLITENESS)
    line = sys.stdin.buffer.readline()
    threading.Thread(target=_end_with_input, daemon=True).start()
    reported_at = 0.0

    def tell(progress: SimulationProgress) -> None:
        nonlocal reported_at
        if time.monotonic() - reported_at >= _TELL_SECONDS:
            reported_at = time.monotonic()
            _say({"progress": progress.model_dump(mode="json")})

    try:
        order = SimulationOrder.model_validate_json(line)
        found = simulate(scenario(order), order.spec.title, order.currency, tell)
    except ProblemError as error:
        places = "; ".join(f"{one.path}: {one.message}" for one in error.mistakes[:5])
        _say({"problem": f"{error.detail} ({places})" if places else error.detail})
    except ValidationError as error:
        # Accepted by an api of another version, or its declarations were changed by one.
        _say({"problem": f"this worker does not understand it: {error.errors()[0]['msg']}"})
    else:
        _say({"result": found.result, "report": found.report})


def _say(value: dict[str, Any]) -> None:
    sys.stdout.buffer.write(orjson.dumps(value) + b"\n")
    sys.stdout.buffer.flush()


def _end_with_input() -> None:
    # Not by the buffer: at the end of the process no thread may hold its lock.
    while os.read(0, 65_536):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
