"""Asking the leading scheduler at the address in its row. With the client's and the worker's ``http.py``, the only place with httpx.

No redirects, no proxies, nothing from the environment; whatever goes wrong is the same: nobody has answered.
"""

import asyncio
import ssl
from typing import TypeVar

import httpx
from pydantic import ValidationError

from trainmaster.protocol.base import Lenient
from trainmaster.protocol.bursting import PolicyStatuses, Previews
from trainmaster.protocol.queue_position import Place, Usages
from trainmaster_dispatcher.services.leader_queries import Answers, NoAnswerError, PreviewQuestion, Questions
from trainmaster_dispatcher.store.scheduling import LeaderAddress

Model = TypeVar("Model", bound=Lenient)

PLACE_SECONDS = 0.5
"""The time-out of a queue position: a caller that asks why a job waits gets the stored answer rather than waiting longer."""
TRY_SECONDS = 20.0
"""The time-out of a whole dry run; the leader itself takes half of it at most."""


class LeaderOverHttp:
    """Implements ``services.leader_queries.Leader``; keeps a connection for the next question."""

    def __init__(self, place_seconds: float = PLACE_SECONDS, try_seconds: float = TRY_SECONDS) -> None:
        self._place_seconds = place_seconds
        self._try_seconds = try_seconds
        limits = httpx.Limits(max_connections=50, max_keepalive_connections=5)
        # The leader's address is plain HTTP: no certificates are loaded, which would take 40 ms, and none are trusted.
        no_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._http = httpx.AsyncClient(trust_env=False, timeout=try_seconds, limits=limits, verify=no_tls)

    async def close(self) -> None:
        await self._http.aclose()

    async def place(self, address: LeaderAddress, key: int) -> Place | None:
        answer = await self._ask(self._place_seconds, address, "GET", f"/place/{key}")
        return None if answer.status_code == httpx.codes.NOT_FOUND else _read(answer, Place)

    async def usage(self, address: LeaderAddress) -> Usages:
        return _read(await self._ask(self._place_seconds, address, "GET", "/usage"), Usages)

    async def try_out(self, address: LeaderAddress, questions: Questions) -> Answers:
        body = questions.model_dump_json(by_alias=True).encode()
        answers = _read(await self._ask(self._try_seconds, address, "POST", "/try", body), Answers)
        if len(answers.trials) != len(questions.jobs):
            raise NoAnswerError("the leader answered another question")
        return answers

    async def bursts(self, address: LeaderAddress) -> PolicyStatuses:
        return _read(await self._ask(self._place_seconds, address, "GET", "/bursts"), PolicyStatuses)

    async def preview(self, address: LeaderAddress, question: PreviewQuestion) -> Previews:
        body = question.model_dump_json(by_alias=True).encode()
        return _read(await self._ask(self._try_seconds, address, "POST", "/preview", body), Previews)

    async def _ask(
        self, seconds: float, address: LeaderAddress, method: str, path: str, body: bytes | None = None
    ) -> httpx.Response:
        url = httpx.URL(scheme="http", host=address.host or "", port=address.port, path=path)
        try:
            # A time-out of the whole call: the leader may be in the middle of a cycle.
            async with asyncio.timeout(seconds):
                return await self._http.request(
                    method, url, content=body, headers={"Authorization": f"Bearer {address.secret}"}
                )
        except (TimeoutError, httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise NoAnswerError(f"the leader does not answer: {error}") from error


def _read(answer: httpx.Response, model: type[Model]) -> Model:
    if answer.status_code != httpx.codes.OK:
        raise NoAnswerError(f"the leader answered {answer.status_code}")
    try:
        return model.model_validate_json(answer.content)
    except ValidationError as error:
        raise NoAnswerError("the leader's answer cannot be read") from error
