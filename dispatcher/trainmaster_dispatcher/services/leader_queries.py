"""Questions on the leading scheduler's state: a job's place, usage of queues, and dry runs of jobs that are not submitted.

An api asks the leader over a port, ``Leader``; without an answer the api shows stored data. The leader answers with ``answer_trial``
and ``scheduling.place.place_of``.
"""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

import orjson

from trainmaster.protocol.base import Lenient
from trainmaster.protocol.bursting import BurstPolicySpec, PolicyStatuses, Previews
from trainmaster.protocol.errors import Code, ProblemError, TrainmasterError
from trainmaster.protocol.ids import parse_job_id
from trainmaster.protocol.queue_position import Place, Trial, Usages
from trainmaster.protocol.reasons import Tier
from trainmaster.protocol.states import JobState
from trainmaster_dispatcher.domain.shapes import shape_from
from trainmaster_dispatcher.scheduling.cycle.engine import Engine
from trainmaster_dispatcher.scheduling.queries.dry_run import try_out
from trainmaster_dispatcher.scheduling.queries.queue_position import Reasons
from trainmaster_dispatcher.scheduling.queries.wait_forecaster import WaitForecaster
from trainmaster_dispatcher.scheduling.quotas.quota import QuotaTree
from trainmaster_dispatcher.scheduling.state.jobs import WaitingJob
from trainmaster_dispatcher.services import bursting, job_queries
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.submission_parsing import PreparedSpec
from trainmaster_dispatcher.services.submit import Submission, admit
from trainmaster_dispatcher.services.write_rights import check_spec
from trainmaster_dispatcher.store import bursts, scheduling
from trainmaster_dispatcher.store.keys import Caller
from trainmaster_dispatcher.store.scheduling import LeaderAddress

MOST_TRIED = 100
"""Most jobs in one dry run: the leader works them out one by one, between its cycles."""


class NoAnswerError(TrainmasterError):
    """No leader has answered in time."""


class Question(Lenient):
    """A job that is not submitted, as the leader has to know it."""

    name: str
    queue_id: int
    class_id: int
    priority: int
    shape: dict[str, Any]
    user: str = ""
    deadline: float | None = None
    """Seconds since the epoch."""


class Questions(Lenient):
    """The jobs of one dry run."""

    jobs: tuple[Question, ...]


class Answers(Lenient):
    """In the order of the questions; None where it does not know the queue or the class yet, and where time was up."""

    trials: tuple[Trial | None, ...]


class PreviewQuestion(Lenient):
    """Question about burst policies: with ``policies``, by key, as if these were all there are."""

    policies: tuple[tuple[int, BurstPolicySpec], ...] | None = None


class Leader(Protocol):
    """The leading scheduler as an api reaches it. Each call raises NoAnswerError."""

    async def place(self, address: LeaderAddress, key: int) -> Place | None:
        """Return the place of a job; None if the job does not wait in the leader's state."""

    async def usage(self, address: LeaderAddress) -> Usages:
        """Return the usage of queues."""

    async def try_out(self, address: LeaderAddress, questions: Questions) -> Answers:
        """Return what would become of these jobs."""

    async def bursts(self, address: LeaderAddress) -> PolicyStatuses:
        """Return the status of burst policies."""

    async def preview(self, address: LeaderAddress, question: PreviewQuestion) -> Previews:
        """Return what burst policies would do now."""


def answer_trial(
    engine: Engine,
    quotas: QuotaTree,
    question: Question,
    now: float,
    reasons: Reasons,
    forecaster: WaitForecaster | None = None,
) -> Trial | None:
    """Return the leader's answer to one question. ``reasons``: of classes of waiting jobs."""
    job = WaitingJob(
        id=0,
        version=0,
        name=question.name,
        queue_id=question.queue_id,
        class_id=question.class_id,
        shape_id=0,
        priority=question.priority,
        waits_since=now,
        attempt=0,
        user=question.user,
        deadline=question.deadline,
    )
    return try_out(engine, quotas, job, shape_from(question.shape), now, reasons, forecaster)


async def why(stores: Stores, leader: Leader, caller: Caller, text: str) -> dict[str, Any]:
    """Return why a job is in its state; for a queued job with its place, or the stored verdict's age where no leader answers."""
    async with stores.database.transaction() as tx:
        answer = await job_queries.why(tx, caller, text)
        if answer["state"] != JobState.QUEUED:
            return answer
        address = await scheduling.leader_address(tx)
    try:
        if address is None:
            raise NoAnswerError("no scheduler leads")
        place = await leader.place(address, parse_job_id(text)[1])
    except NoAnswerError:
        age = {} if answer.get("at") is None else {"ageSeconds": _age(answer["at"])}
        return answer | {"live": False} | age
    shown = {} if place is None else _dump(_known_to(caller, place))
    if answer.get("tier") == Tier.CANNOT_RUN or answer.get("forEver"):
        for field in ("position", "jobsAhead", "forecast"):  # it has no turn
            shown.pop(field, None)
    return answer | {"live": True} | shown


def _known_to(caller: Caller, place: Place) -> Place:
    """Return a place without the turns of queues above those of the caller: their shares show the usage of others."""
    turns = tuple(turn for turn in place.factors.queues if caller.may_use(turn.queue))
    return place.model_copy(update={"factors": place.factors.model_copy(update={"queues": turns})})


async def queues(stores: Stores, leader: Leader, caller: Caller, *, with_ended: bool) -> dict[str, Any]:
    """Return the queues that the caller may see, with their usage; without usage where no leader answers."""
    async with stores.database.transaction() as tx:
        found = await job_queries.list_queues(tx, caller, with_ended=with_ended)
        address = await scheduling.leader_address(tx)
    try:
        if address is None:
            raise NoAnswerError("no scheduler leads")
        usages = {one.queue: _dump(one) for one in (await leader.usage(address)).queues}
    except NoAnswerError:
        return {"live": False, "queues": found}
    for queue in found:
        # A queue that was created a moment ago may not be known to the leader yet.
        # The usage of a queue above is the usage of others.
        if queue["path"] in usages and caller.may_use(queue["path"]):
            queue["usage"] = {key: value for key, value in usages[queue["path"]].items() if key != "queue"}
    return {"live": True, "queues": found}


async def policies(stores: Stores, leader: Leader, caller: Caller) -> dict[str, Any]:
    """Return the burst policies of queues that concern the caller, with their status; without status where no leader answers.

    A user sees neither which other queues a policy is for nor, where there are any, what was spent by the policy; only whether it
    is open.
    """
    async with stores.database.transaction() as tx:
        every = await bursting.list_policies(tx)
        address = await scheduling.leader_address(tx)
    currency = stores.settings.currency
    found = [one for one in every if any(map(caller.may_know, one["queues"]))]
    shared = {one["name"] for one in found if not all(map(caller.may_use, one["queues"]))}
    for policy in found:
        if policy["name"] in shared:
            policy["shared"] = True
        policy["queues"] = [path for path in policy["queues"] if caller.may_know(path)]
    try:
        if address is None:
            raise NoAnswerError("no scheduler leads")
        standing = {one.name: _dump(one) for one in (await leader.bursts(address)).policies}
    except NoAnswerError:
        return {"live": False, "currency": currency, "burstPolicies": found}
    for policy in found:
        # A policy that was created a moment ago may not be known to the leader yet.
        if policy["name"] not in standing:
            continue
        status = standing[policy["name"]]
        if policy["name"] in shared:
            policy["open"] = not status.get("closed")
        else:
            policy["status"] = {key: value for key, value in status.items() if key != "name"}
    return {"live": True, "currency": currency, "burstPolicies": found}


async def preview(stores: Stores, leader: Leader, caller: Caller, tried: Sequence[BurstPolicySpec]) -> dict[str, Any]:
    """Return what burst policies would do now, with ``tried`` in place of those with the same names, or beside them.

    A caller who may write policies for some queues sees the jobs of these.

    Raises ProblemError where a policy names an object that does not exist, or queues of others, or no leader answers.
    """
    for spec in tried:
        check_spec(caller, "BurstPolicy", spec.name, spec)
    async with stores.database.transaction() as tx:
        for one in await bursting.check_policies(tx, tried):
            if isinstance(one, ProblemError):
                raise one
        known = {row.spec.name: (row.id, row.spec) for row in await bursts.POLICIES.every(tx)}
        for spec in tried:
            if spec.name in known:
                check_spec(caller, "BurstPolicy", spec.name, known[spec.name][1])
        address = await scheduling.leader_address(tx)
    for number, spec in enumerate(tried, start=1):
        known[spec.name] = known.get(spec.name, (-number, spec))[0], spec
    question = PreviewQuestion(policies=tuple(known.values()) if tried else None)
    try:
        if address is None:
            raise NoAnswerError("no scheduler leads")
        found = await leader.preview(address, question)
    except NoAnswerError as error:
        raise ProblemError(
            Code.STORE_AWAY, f"the burst preview needs the leading scheduler, which did not answer: {error}"
        ) from error
    shown = tuple(one for one in found.previews if caller.may_use(one.queue))
    terms = {"currency": stores.settings.currency, "looked_at": len(shown), "previews": shown}
    return _dump(found.model_copy(update=terms))


def _age(at: str) -> float:
    return round(max(0.0, (datetime.now(UTC) - datetime.fromisoformat(at)).total_seconds()), 3)


def _dump(model: Lenient) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def _held(spec: PreparedSpec) -> dict[str, Any]:
    cause = spec.first_hold
    return {"held": False} if cause is None else {"held": True, "holdCause": cause.value}


async def dry_run(stores: Stores, leader: Leader, submission: Submission) -> dict[str, Any]:
    """Check jobs as a submission does, and return what would become of each. Stores nothing.

    The jobs of a table of parameters are tried as one. Raises ProblemError when one of the jobs would be refused.
    """
    caller, prepared = submission.caller, submission.prepared
    many = len(prepared.specs)
    if many > MOST_TRIED:
        raise ProblemError(Code.INVALID_SPEC, f"{many} jobs in one dry run, at most {MOST_TRIED} are allowed")
    async with stores.database.transaction() as tx:
        admitted = await admit(tx, stores, [submission])
        if admitted.refused:
            raise admitted.refused[0]
        address = await scheduling.leader_address(tx)
    keys = [(spec.queue, spec.priority_class, spec.priority, spec.shape_hash, spec.deadline) for spec in prepared.specs]
    now = time.time()
    questions = {
        key: Question(
            name=spec.name,
            queue_id=admitted.queues[spec.queue],
            class_id=admitted.classes[spec.priority_class, spec.queue],
            priority=spec.priority,
            shape=orjson.loads(prepared.shapes[spec.shape_hash]),
            user=caller.name,
            deadline=None if spec.deadline is None else spec.deadline.at(now),
        )
        for key, spec in zip(keys, prepared.specs, strict=True)
    }
    try:
        if address is None:
            raise NoAnswerError("no scheduler leads")
        answers = await leader.try_out(address, Questions(jobs=tuple(questions.values())))
        trials = dict(zip(questions, answers.trials, strict=True))
    except NoAnswerError:
        trials = {}
    jobs = []
    for key, spec in zip(keys, prepared.specs, strict=True):
        trial, answer = trials.get(key), {"name": spec.name, "queue": spec.queue, **_held(spec)}
        if prepared.parameters is not None:
            answer["count"] = len(prepared)
        if trial is not None:
            answer["trial"] = _dump(trial.model_copy(update={"place": _known_to(caller, trial.place)}))
        jobs.append(answer)
    return {
        "live": bool(trials),
        "jobs": jobs,
        **({"warnings": prepared.shown_warnings} if prepared.warnings else {}),
    }
