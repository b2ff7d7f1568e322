"""The programs of simulated containers: a container's words, played against the clock, gates and signals."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from tests.cluster.behaviour import KILLED, End, Exit, Step
from tests.cluster.sandbox import Container, Sandbox


async def exit_of(pod: Sandbox, container: Container, gates: Mapping[str, asyncio.Event]) -> Exit:
    """Run the container's behaviour to its end, and return its exit. ``gates`` creates a gate when it is first asked for."""
    behaviour = container.behaviour
    if behaviour.end.ignores_sigterm:
        request, asked_exit = pod.kill, KILLED
    else:
        request, asked_exit = pod.terminate, behaviour.on_sigterm
    left = ""
    for step, word in behaviour.steps:
        if step is Step.PRINT:
            container.write(word)
        elif step is Step.RESULTS:
            left = word
        elif await _interrupted(request, gates[word] if step is Step.GATE else float(word)):
            return asked_exit
    if (at_once := behaviour.at_once) is not None:
        return replace(at_once, message=at_once.message or left)
    if behaviour.end is End.HANG:
        await asyncio.Event().wait()
    await request.wait()
    return asked_exit


async def _interrupted(request: asyncio.Event, until: asyncio.Event | float) -> bool:
    """Wait for ``until``, an event or a number of seconds; return whether the container was asked to end before that."""
    if isinstance(until, float):
        with suppress(TimeoutError):
            await asyncio.wait_for(request.wait(), until)
        return request.is_set()
    waits = [asyncio.ensure_future(event.wait()) for event in (request, until)]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    return not until.is_set()
