"""Events of workflows, and the webhook messages about them: written in the transaction of the change that they report."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from trainmaster.protocol.ids import workflow_id
from trainmaster.protocol.notices import Chat
from trainmaster.protocol.states import StepState, WorkflowState
from trainmaster_dispatcher.domain.notices import chat_destination, email_destination
from trainmaster_dispatcher.domain.redaction import protected
from trainmaster_dispatcher.domain.webhooks import BODY_VERSION
from trainmaster_dispatcher.domain.workflow_events import WorkflowEvent, WorkflowEventKind
from trainmaster_dispatcher.store import outbox
from trainmaster_dispatcher.store import workflow_events as store
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.outbox import WorkflowMessage
from trainmaster_dispatcher.store.workflows import WorkflowRow

_USUAL_STATES: Final = tuple(state.value for state in WorkflowState if state.is_terminal)
"""The states that a webhook without ``states`` is notified of; specifications are stored without default values."""
_LONGEST_MESSAGE: Final = 2_000


def step_names(row: WorkflowRow) -> list[str]:
    """Return the names of a workflow's steps, in their order."""
    return [str(step.get("name", "")) for step in row.spec["steps"]]


def step_queues(row: WorkflowRow) -> list[str]:
    """Return the queue of each step's jobs."""
    jobs = [step.get("job") for step in row.spec["steps"]]
    return [str(job.get("queue") or row.queue) if isinstance(job, dict) else row.queue for job in jobs]


def for_users_of(queue: str, row: WorkflowRow, text: str, otherwise: str = "its jobs are of another queue") -> str:
    """Return a text about a step whose jobs are in ``queue``, of which those without rights to that queue see another one."""
    return protected(text, queue, otherwise) if text and queue != row.queue else text


async def record(
    tx: Transaction, row: WorkflowRow, events: Sequence[WorkflowEvent], states: Iterable[StepState]
) -> None:
    """Store events of a workflow, and the messages to its webhooks. ``states``: those of its steps after the events."""
    events = [one._replace(message=one.message[:_LONGEST_MESSAGE]) for one in events]
    first = await store.add(tx, row.id, events)
    hooks = row.spec.get("notify") or ()
    if not hooks:
        return
    steps = {state.value: many for state, many in sorted(Counter(states).items())}
    messages: list[WorkflowMessage] = []
    state = row.state
    for seq, event in enumerate(events, first):
        state = event.kind.entered or state
        body = _body(row, event, seq, state, steps)
        for index, hook in enumerate(hooks):
            if _wants(hook, event.kind):
                messages += [WorkflowMessage(seq, number, body, url) for number, url in _receivers(index, hook)]
    if messages:
        await outbox.insert_of_workflow(tx, row.id, messages)


def _receivers(index: int, hook: Mapping[str, Any]) -> list[tuple[int, str | None]]:
    """Return the numbers and addresses of the receivers of an entry of ``notify``; a webhook has the address in the specification."""
    if "chat" in hook:
        return [(index, chat_destination(Chat.model_validate(hook["chat"])))]
    if "email" in hook:
        places = enumerate(hook["email"])
        return [(index + outbox.MOST_HOOKS * place, email_destination(one)) for place, one in places]
    return [(index, None)]


def _wants(hook: Mapping[str, Any], kind: WorkflowEventKind) -> bool:
    """Return whether a webhook is notified of events of a kind."""
    if kind is WorkflowEventKind.STEP_FAILED:
        return bool(hook.get("stepFailed"))
    return kind.entered is not None and kind.entered.value in hook.get("states", _USUAL_STATES)


def _body(
    row: WorkflowRow, event: WorkflowEvent, seq: int, state: WorkflowState, steps: Mapping[str, int]
) -> dict[str, Any]:
    text = workflow_id(row.name, row.id)
    return {
        "version": BODY_VERSION,
        "workflow": text,
        "name": row.name,
        "queue": row.queue,
        "labels": row.labels or {},
        "seq": seq,
        "event": event.kind.value,
        "states": [] if event.kind.entered is None else [event.kind.entered.value],
        "state": state.value,
        "attempt": row.attempt,
        "steps": steps,
        "step": event.step,
        "message": event.message,
        "link": f"/v1/workflows/{text}",
    }
