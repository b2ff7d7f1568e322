"""The leader's HTTP endpoint, where apis ask questions about its state. It runs on the loop's own event loop.

Each answer is computed without interruption, and the loop waits for it meanwhile. So answers are short; dry runs, which
take longer where clusters are many, take at most half of the time: after each, the loop has as long for itself. The
secret in the leadership row gives access, hence everybody who can read the store has it.
"""

import asyncio
import hmac
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trainmaster.protocol.base import Lenient
from trainmaster.protocol.bursting import PolicyStatuses, Previews
from trainmaster.protocol.queue_position import Trial
from trainmaster_dispatcher.containment import Part, contained, note
from trainmaster_dispatcher.domain.burst_policies import policy_of
from trainmaster_dispatcher.http_connections import CannotListenError, serving_beside
from trainmaster_dispatcher.scheduling.cycle.engine import Engine
from trainmaster_dispatcher.scheduling.queries.burst_preview import preview, statuses
from trainmaster_dispatcher.scheduling.queries.queue_position import (
    NO_REASONS,
    Reasons,
    place_of,
    quotas_of,
    usage_of,
)
from trainmaster_dispatcher.scheduling.queries.wait_forecaster import WaitForecaster, forecast_start
from trainmaster_dispatcher.scheduling.quotas.quota import QuotaTree
from trainmaster_dispatcher.scheduling.state.state import SchedulerState
from trainmaster_dispatcher.services.leader_queries import MOST_TRIED, Answers, PreviewQuestion, Questions, answer_trial
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.store.scheduling import LeaderAddress

log = logging.getLogger(__name__)

_LEDGER_SECONDS = 1.0
"""The time for which shares computed for a question are reused."""
_TRY_SECONDS = 10.0
"""The time for the dry runs of one call; those that exceed it have no answer."""


class LeadingEngine(NamedTuple):
    """The leader's engine, its time in seconds since the epoch, the reasons of classes of waiting jobs as last stored, and what it
    has learned of waits."""

    engine: Engine
    now: float
    reasons: Reasons = NO_REASONS
    forecaster: WaitForecaster | None = None


Look = Callable[[], LeadingEngine | None]
"""Returns the leader's engine; None in a process that does not lead, or has not read everything yet."""


class _KnownQuotas:
    """The quotas at one moment, cached for all questions of that moment."""

    def __init__(self) -> None:
        self._quotas: QuotaTree | None = None
        self._quotas_of: SchedulerState | None = None

    def of(self, sight: LeadingEngine) -> QuotaTree:
        if self._quotas is None or self._quotas_of is not sight.engine.state:
            self._quotas, self._quotas_of = quotas_of(sight.engine, sight.now), sight.engine.state
            # Not longer: the object holds its state, which may be large and no longer in use.
            asyncio.get_running_loop().call_later(_LEDGER_SECONDS, self._forget)
        return self._quotas

    def _forget(self) -> None:
        self._quotas = self._quotas_of = None


def make_leader_api(
    look: Look, secret: str, deciding: asyncio.Lock | None = None, changing: asyncio.Lock | None = None
) -> Starlette:
    """Return the endpoint; 401 without the secret, 503 if there is no engine.

    ``deciding`` is held while the state is in use, ``changing`` while it changes. ``GET /place/{key}``, ``/usage`` and
    ``/bursts``, ``POST /try`` and ``/preview``.
    """
    answers = _Answers(look, deciding or asyncio.Lock(), changing or asyncio.Lock())

    def ours(handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            given = request.headers.get("authorization", "")
            is_ours = hmac.compare_digest(given.encode(), f"Bearer {secret}".encode())
            if not is_ours:
                return Response("this is for the apis", 401)
            try:
                return await handler(request)
            except Exception as error:  # noqa: BLE001 - noted; the loop and other questions go on
                note(Part.QUESTION, request.url.path, error)
                return Response("an error inside Trainmaster; its log has it", 500)

        return guarded

    return Starlette(
        routes=[
            Route("/place/{key:int}", ours(answers.place)),
            Route("/usage", ours(answers.usage)),
            Route("/bursts", ours(answers.bursts)),
            Route("/try", ours(answers.try_all), methods=["POST"]),
            Route("/preview", ours(answers.preview), methods=["POST"]),
        ]
    )


class _Answers:
    """Answers the questions. ``free`` is held while the state is in use, ``changing`` while it changes."""

    def __init__(self, look: Look, free: asyncio.Lock, changing: asyncio.Lock) -> None:
        self._look = look
        self._free = free
        self._changing = changing
        self._known_quotas = _KnownQuotas()
        self._one_at_a_time = asyncio.Lock()

    async def place(self, request: Request) -> Response:
        async with self._free:
            sight = self._look()
            if sight is None:
                return _not_leading()
            quotas, job_id = self._known_quotas.of(sight), request.path_params["key"]
            found = place_of(sight.engine.state, quotas, job_id, sight.now, sight.reasons)
            if found is not None and sight.forecaster is not None:
                forecast = forecast_start(sight.forecaster, sight.engine, job_id, sight.now, sight.reasons)
                found = found.model_copy(update={"forecast": forecast})
        return Response("it does not wait", 404) if found is None else _answer(found)

    async def usage(self, _request: Request) -> Response:
        async with self._free:
            sight = self._look()
            return (
                _not_leading() if sight is None else _answer(usage_of(sight.engine.state, self._known_quotas.of(sight)))
            )

    async def bursts(self, _request: Request) -> Response:
        async with self._free:
            sight = self._look()
            return (
                _not_leading()
                if sight is None
                else _answer(PolicyStatuses(policies=tuple(statuses(sight.engine, sight.now))))
            )

    async def try_all(self, request: Request) -> Response:
        try:
            questions = Questions.model_validate_json(await request.body())
        except ValidationError as error:
            return Response(str(error), 422)
        if len(questions.jobs) > MOST_TRIED:
            return Response(f"at most {MOST_TRIED} jobs", 422)
        trials = await _try_each(self._look, self._known_quotas, questions, self._one_at_a_time, self._free)
        return _not_leading() if trials is None else _answer(Answers(trials=tuple(trials)))

    async def preview(self, request: Request) -> Response:
        try:
            question = PreviewQuestion.model_validate_json(await request.body())
        except ValidationError as error:
            return Response(str(error), 422)
        policies = None
        if question.policies is not None:
            policies = [policy_of(number, spec) for number, spec in question.policies]
        # It runs in a thread, so the state must not change meanwhile.
        async with self._one_at_a_time, self._changing, self._free:
            sight = self._look()
            if sight is None:
                return _not_leading()
            # It takes as long as a cycle, during which the leadership has to be renewed.
            found = await asyncio.to_thread(preview, sight.engine, sight.now, policies)
        return _answer(Previews(previews=tuple(found)))


async def _try_each(
    look: Look, ledgers: _KnownQuotas, questions: Questions, one_at_a_time: asyncio.Lock, free: asyncio.Lock
) -> list[Trial | None] | None:
    """Return the dry runs of one call; None if there is no engine."""
    trials: list[Trial | None] = []
    clock = asyncio.get_running_loop().time
    ends = clock() + _TRY_SECONDS
    for question in questions.jobs:
        async with one_at_a_time:
            async with free:
                began, sight = clock(), look()
                if sight is None:
                    return None
                is_late = began > ends
                trial = None
                if not is_late:
                    with contained(Part.QUESTION, f"dry run of {question.name}"):
                        quotas = ledgers.of(sight)
                        trial = answer_trial(sight.engine, quotas, question, sight.now, sight.reasons, sight.forecaster)
                trials.append(trial)
                took = clock() - began
            await asyncio.sleep(took)
    return trials


def _not_leading() -> Response:
    return Response("this scheduler does not lead", 503)


def _answer(model: Lenient) -> Response:
    return Response(model.model_dump_json(by_alias=True), media_type="application/json")


@asynccontextmanager
async def serving(
    settings: Settings, look: Look, deciding: asyncio.Lock | None = None, changing: asyncio.Lock | None = None
) -> AsyncIterator[LeaderAddress]:
    """Serve the endpoint while the block runs; yield its address and its secret. Raises CannotListenError."""
    secret = secrets.token_urlsafe(32)
    app = make_leader_api(look, secret, deciding, changing)
    try:
        async with serving_beside(
            app, settings.scheduler_read_host, settings.scheduler_read_port, settings.connection_bounds
        ) as (host, port):
            log.info("questions of the apis are answered at port %d", port, extra={"port": port})
            yield LeaderAddress(host, port, secret)
    except CannotListenError as error:
        raise CannotListenError(f"TRAINMASTER_SCHEDULER_READ_HOST and _PORT: {error}") from error
