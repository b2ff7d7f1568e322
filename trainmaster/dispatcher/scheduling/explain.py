"""From verdicts to the one reason that is told: its token, sentence and what would change it."""

from collections.abc import Sequence

from trainmaster.dispatcher.scheduling.view import Queue
from trainmaster.protocol.reasons import Check, Reason, Token, Verdict

_PRECEDENCE: tuple[tuple[Check, Token], ...] = (
    (Check.NO_ROOM, Token.INSUFFICIENT_CAPACITY),
    (Check.COOLING_DOWN, Token.COOLING_DOWN),
    (Check.UNREACHABLE, Token.UNREACHABLE),
    (Check.NO_REPORT, Token.UNREACHABLE),
    (Check.CORDONED, Token.CORDONED),
    (Check.NEVER_FITS, Token.TOO_LARGE),
    (Check.CAPABILITY, Token.NOT_SUPPORTED),
    (Check.DATASET, Token.NOT_SUPPORTED),
)
"""The check nearest to a start decides: a job that only lacks room on one cluster is not called impossible for another's sake."""

_ADVICE = {
    Token.INSUFFICIENT_CAPACITY: "It starts when enough is freed. Fewer or smaller members may fit sooner.",
    Token.COOLING_DOWN: "It is tried again there when the pause is over.",
    Token.UNREACHABLE: "It can start when the agent is back; the cluster's owner can look at the agent's log.",
    Token.CORDONED: "An admin can let jobs start there again: trainmaster clusters uncordon NAME.",
    Token.TOO_LARGE: "Waiting will not help: make the members smaller or fewer, or ask an admin for larger nodes.",
    Token.NOT_SUPPORTED: "Waiting will not help: drop the feature, or ask an admin for a cluster that offers it.",
    Token.NO_CLUSTER_ALLOWED: "Waiting will not help: change the job's placement or queue, or ask an admin.",
    Token.NO_CLUSTERS: "An admin has to connect a cluster first.",
    Token.QUEUE_LIMIT: "It starts when other jobs of the queue end. An admin can raise the limit.",
    Token.QUEUE_HELD: "An admin holds the queue; it starts nothing until it is released.",
    Token.CYCLE_LIMIT: "It is its turn in one of the next cycles.",
}


def reason(token: Token, sentence: str, verdicts: Sequence[Verdict] = ()) -> Reason:
    """A reason with its tier and advice."""
    return Reason(
        token=token, tier=token.tier, sentence=sentence, advice=_ADVICE.get(token, ""), verdicts=tuple(verdicts)
    )


def blocked(verdicts: Sequence[Verdict]) -> Reason:
    """The reason of a class that no cluster can start now."""
    if not verdicts:
        return reason(Token.NO_CLUSTERS, "No cluster is connected.")
    for check, token in _PRECEDENCE:
        relevant = [verdict for verdict in verdicts if verdict.check is check]
        if relevant:
            return reason(token, _sentence(token, relevant), verdicts)
    first = verdicts[0]
    only = "The only cluster" if len(verdicts) == 1 else f"None of the {len(verdicts)} clusters"
    middle = "is not allowed for it" if len(verdicts) == 1 else "is allowed for it"
    return reason(Token.NO_CLUSTER_ALLOWED, f"{only} {middle}: {first.cluster}: {first.sentence}.", verdicts)


def _sentence(token: Token, relevant: Sequence[Verdict]) -> str:
    first = relevant[0]
    others = f" (and {len(relevant) - 1} more)" if len(relevant) > 1 else ""
    text = f"{first.cluster}: {first.sentence}{others}."
    match token:
        case Token.INSUFFICIENT_CAPACITY:
            return f"It waits for free capacity; {text}"
        case Token.TOO_LARGE:
            return f"It fits on no cluster, not even on an empty one; {text}"
        case Token.COOLING_DOWN:
            return f"The clusters it could go to have just refused it; {text}"
        case Token.UNREACHABLE:
            return f"The clusters it could go to are not in contact; {text}"
        case Token.CORDONED:
            return f"The clusters it could go to are closed to new jobs; {text}"
        case _:
            return f"No cluster offers what it asks for; {text}"


def over_quota(queue: Queue, sentence: str, *, for_ever: bool) -> Reason:
    """The reason of a class that its queue's limits hold back."""
    if for_ever:
        text = f"It can never start in queue {queue.path}: {sentence}."
        return reason(Token.QUEUE_LIMIT, text).model_copy(
            update={"advice": "Waiting will not help: make the job smaller, or ask an admin to raise the limit."}
        )
    return reason(Token.QUEUE_LIMIT, sentence[0].upper() + sentence[1:] + ".")
