"""The registry of reasons: for each token its tier, sentence, advice and line in the docs; for each check the token that it leads to.

It does not decide which reason a job has: the scheduler and the services do, and build it by ``Token.reason``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from trainmaster.protocol.base import Lenient, Timestamp


class Tier(StrEnum):
    """Stage of a job on its way to a start; the first tier that blocks is the one that is reported."""

    CANNOT_RUN = "cannot run as written"
    HELD = "held"
    QUOTA = "quota"
    CAPACITY = "capacity"
    PLACING = "being placed"
    UNSEEN = "not looked at yet"
    NONE = "not waiting"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonKind:
    """Everything that is the same for all reasons with one token. Texts in braces are parts that whoever builds a reason gives."""

    code: str
    """The token as scripts read it: it never changes."""
    tier: Tier
    sentence: str
    advice: str = ""
    """What the reader can do next, or what happens by itself."""
    sentence_for_ever: str = ""
    advice_for_ever: str = ""
    """The same where waiting does not help; empty for tokens of which that is never found out."""
    meaning: str
    """For the reference: the job waits because ..."""
    see: str = ""
    """For the reference: a page below ``docs/`` that says more."""


NOT_BY_POLICY = "{waits} By policy {policy} it does not go to a public cluster: {finding}."
"""The sentence of a job that waits, and that a burst policy does not let go to a public cluster."""
_NEVER_IN_QUEUE = "It can never start in queue {queue}: {finding}."
_MAKE_SMALLER = "Waiting will not help: make the job smaller, or ask an admin to raise the limit."


class Token(StrEnum):
    """The stable code of a reason. Scripts match on these; sentences may change."""

    def __new__(cls, kind: ReasonKind) -> Self:
        member = str.__new__(cls, kind.code)
        member._value_ = kind.code
        return member

    def __init__(self, kind: ReasonKind) -> None:
        self.kind = kind

    NO_CLUSTER_ALLOWED = ReasonKind(
        code="NoClusterAllowed",
        tier=Tier.CANNOT_RUN,
        sentence="{none} allowed for it: {cluster}: {finding}.",
        advice="Waiting will not help: change the job's placement or its queue, or ask an admin to allow more clusters.",
        meaning="its placement or its queue's `allowedKinds` rule out every cluster",
    )
    TOO_LARGE = ReasonKind(
        code="TooLarge",
        tier=Tier.CANNOT_RUN,
        sentence="It fits on no cluster{but}, not even on an empty one; {cluster}: {finding}{others}.",
        advice=(
            "Waiting will not help: make the members smaller or fewer, correct which nodes they select, or ask an admin for"
            " such nodes."
        ),
        meaning="its gang, at its least size and topology level, fits on no cluster, not even on an empty one",
    )
    NOT_SUPPORTED = ReasonKind(
        code="NotSupported",
        tier=Tier.CANNOT_RUN,
        sentence="No cluster{but} offers what it asks for; {cluster}: {finding}{others}.",
        advice="Waiting will not help: drop what is missing, or ask an admin for a cluster that offers it.",
        meaning="no cluster has all datasets and features that it asks for",
    )
    NO_CLUSTERS = ReasonKind(
        code="NoClusters",
        tier=Tier.CAPACITY,
        sentence="No cluster is connected.",
        advice="An admin has to connect a cluster first.",
        meaning="there is no cluster",
    )
    HELD_BY_USER = ReasonKind(
        code="HeldByUser",
        tier=Tier.HELD,
        sentence="It is held by a person{because}.",
        advice="Release it with: trainmaster resume {job}",
        meaning="a person holds it",
    )
    SUSPENDED = ReasonKind(
        code="Suspended",
        tier=Tier.HELD,
        sentence="It was suspended while it ran{because}.",
        advice="Resume it with: trainmaster resume {job}",
        meaning="it was suspended while it ran",
    )
    BACKING_OFF = ReasonKind(
        code="BackingOff",
        tier=Tier.HELD,
        sentence="Its last run failed and it waits before the next try{because}.",
        advice="It is tried again by itself; at once with: trainmaster resume {job}",
        meaning="its last run failed; it is tried again at the time that the sentence gives",
    )
    START_TIME = ReasonKind(
        code="StartTime",
        tier=Tier.HELD,
        sentence="Its start time has not come{because}.",
        advice="It starts by itself after that time; at once with: trainmaster resume {job}",
        meaning="the time of its `startAfter` has not come",
    )
    DEPENDENCY = ReasonKind(
        code="Dependency",
        tier=Tier.HELD,
        sentence="It waits for other jobs{because}.",
        advice="It starts by itself after them; at once, without waiting for them, with: trainmaster resume {job}",
        meaning="the conditions of its `after` are not all met",
    )
    ELEMENTS = ReasonKind(
        code="Elements",
        tier=Tier.NONE,
        sentence="Its elements are jobs of their own: {counts}{because}.",
        advice="Look at these with: trainmaster elements {job} --jobs",
        meaning="it is an array whose elements are jobs, each of which waits and runs by itself",
        see="how-to/run-arrays-of-jobs.md",
    )
    UNPLACEABLE = ReasonKind(
        code="Unplaceable",
        tier=Tier.HELD,
        sentence="The clusters it was sent to could not place it{because}.",
        advice="Read the clusters' messages, correct the job or the cluster, then: trainmaster resume {job}",
        meaning=(
            "clusters returned it five times in a row, or every one that could take it did, and not only as they had no room"
            " for it"
        ),
    )
    QUEUE_HELD = ReasonKind(
        code="QueueHeld",
        tier=Tier.HELD,
        sentence="Queue {queue} is {state}.",
        advice="The queue starts nothing until an admin opens it again (state: open).",
        meaning="its queue, or one above it, is `held`, `stopped` or `suspended`",
    )
    OUTSIDE_HOURS = ReasonKind(
        code="OutsideHours",
        tier=Tier.HELD,
        sentence="{finding}.",
        advice="It starts by itself in those hours; an admin can change them (startsWhen.hours of the queue).",
        meaning=(
            "its queue, or one above it, starts jobs in other hours only (`startsWhen.hours`); the sentence names them, and when"
            " they begin"
        ),
        see="reference/queues.md",
    )
    INTERNAL_ERROR = ReasonKind(
        code="InternalError",
        tier=Tier.HELD,
        sentence="It is held back until this is fixed: {cause}.",
        advice="It is tried again by itself. If this stays, tell an admin: the scheduler's log names the error.",
        meaning=(
            "an unexpected error keeps the scheduler from deciding on it, or what is stored of it, its queue or its class"
            " cannot be read; jobs behind it go on"
        ),
        see="how-to/runbooks/contained-errors.md",
    )
    QUEUE_LIMIT = ReasonKind(
        code="QueueLimit",
        tier=Tier.QUOTA,
        sentence="{finding}.",
        advice="It starts when other jobs of the queue end. An admin can raise the limit.",
        sentence_for_ever=_NEVER_IN_QUEUE,
        advice_for_ever=_MAKE_SMALLER,
        meaning="it would exceed a `limit` or `maxRunning` of its queue or one above",
    )
    USER_LIMIT = ReasonKind(
        code="UserLimit",
        tier=Tier.QUOTA,
        sentence="{finding}.",
        advice="It starts when other jobs of the same user end. An admin can raise the limit of users.",
        sentence_for_ever=_NEVER_IN_QUEUE,
        advice_for_ever=_MAKE_SMALLER,
        meaning="it would exceed the `maxRunningPerUser` or `limitsPerUser` of its queue or one above",
    )
    BORROWING_LIMIT = ReasonKind(
        code="BorrowingLimit",
        tier=Tier.QUOTA,
        sentence="{finding}.",
        advice="It starts when other jobs of the queue end. An admin can let the queue borrow more.",
        meaning="it would exceed a `borrowingLimit` of its queue or one above",
    )
    KEPT_FOR_OTHERS = ReasonKind(
        code="KeptForOthers",
        tier=Tier.QUOTA,
        sentence="{finding}.",
        advice="It starts when more is free. An admin can let that queue lend what it does not use.",
        meaning="what is free is kept by another queue's `lendingLimit`",
    )
    BEHIND_OTHERS = ReasonKind(
        code="BehindOthers",
        tier=Tier.QUOTA,
        sentence="Queue {queue} keeps its order, and {first} is before it.",
        advice="It starts when those before it have started; an admin can let others pass in that queue.",
        meaning="its queue is `strict` and a job before it, which is named, cannot start",
    )
    PREEMPTING = ReasonKind(
        code="Preempting",
        tier=Tier.QUOTA,
        sentence="Its queue is at its limit, and runs of a lower class in it are being ended for it.",
        advice="It starts when those runs have ended.",
        meaning="runs are being ended so that its queue has the quota for it",
    )
    START_CONDITION = ReasonKind(
        code="StartCondition",
        tier=Tier.CAPACITY,
        sentence="Its queue starts jobs under conditions; {cluster}: {finding}{others}.",
        advice="It starts once a cluster that it fits on meets them; an admin can change them (startsWhen of the queue).",
        meaning=(
            "clusters do not meet the conditions of its queue, or of one above it, on utilisation or price (`startsWhen`); the"
            " sentence has the value and the condition"
        ),
        see="reference/queues.md",
    )
    BURST_NOT_YET = ReasonKind(
        code="BurstNotYet",
        tier=Tier.CAPACITY,
        sentence=NOT_BY_POLICY,
        advice="It starts when enough is freed, or goes to a public cluster once the policy lets it.",
        meaning="its own clusters cannot start it, and a burst policy lets it go to a public one later",
        see="reference/burst-policies.md",
    )
    BURST_LIMIT = ReasonKind(
        code="BurstLimit",
        tier=Tier.CAPACITY,
        sentence=NOT_BY_POLICY,
        advice="It starts when enough is freed, or when others that are at public clusters end.",
        meaning="the policy's limit of jobs, nodes or resources at public clusters is reached",
        see="reference/burst-policies.md",
    )
    BURST_BUDGET = ReasonKind(
        code="BurstBudget",
        tier=Tier.CAPACITY,
        sentence=NOT_BY_POLICY,
        advice="It starts when enough is freed. With a shorter time limit it may cost less than the budget has left.",
        meaning="a budget of the policy is not enough for what it may cost",
        see="reference/burst-policies.md",
    )
    INSUFFICIENT_CAPACITY = ReasonKind(
        code="InsufficientCapacity",
        tier=Tier.CAPACITY,
        sentence="It waits for free capacity; {cluster}: {finding}{others}.",
        advice="It starts when enough is freed. Fewer or smaller members may fit sooner.",
        meaning="its gang fits on no cluster beside what runs there",
    )
    RESERVED = ReasonKind(
        code="ReservedForOthers",
        tier=Tier.CAPACITY,
        sentence="It would delay a job that waits for more; {cluster}: {finding}{others}.",
        advice="It starts when that job has started. If a time is named, it can go first with a time limit that ends before it.",
        meaning="it would fit, but would delay a job for which capacity is reserved",
    )
    RESERVED_FOR_QUEUE = ReasonKind(
        code="ReservedForQueue",
        tier=Tier.CAPACITY,
        sentence="It would use nodes that are reserved; {cluster}: {finding}{others}.",
        advice="It starts when the reservation is over; with a time limit that ends before it begins, now.",
        meaning="it would fit, but an admin has reserved the nodes for a queue, and it might run into that window",
    )
    UNREACHABLE = ReasonKind(
        code="ClustersUnreachable",
        tier=Tier.CAPACITY,
        sentence="The clusters it could go to can start nothing now; {cluster}: {finding}{others}.",
        advice="It can start when they can again; the cluster's owner can look at trainmaster doctor and at the agent's log.",
        meaning="the clusters it could go to are out of contact, can start nothing now, or have not reported yet",
    )
    CORDONED = ReasonKind(
        code="ClustersCordoned",
        tier=Tier.CAPACITY,
        sentence="The clusters it could go to are closed to new jobs; {cluster}: {finding}{others}.",
        advice="An admin can let jobs start there again: trainmaster clusters uncordon {cluster}.",
        meaning="the clusters it could go to are cordoned",
    )
    COOLING_DOWN = ReasonKind(
        code="CoolingDown",
        tier=Tier.CAPACITY,
        sentence="The clusters it could go to have just refused it; {cluster}: {finding}{others}.",
        advice="It is tried again there when the pause is over.",
        meaning="the clusters it could go to have returned it a short while ago",
    )
    BEING_PLACED = ReasonKind(
        code="BeingPlaced",
        tier=Tier.PLACING,
        sentence="It was sent to a cluster{where}: {progress}{chosen}.{added}",
        meaning="it was sent to a cluster, where its members are being started",
    )
    RUNNING = ReasonKind(
        code="Running",
        tier=Tier.NONE,
        sentence="It runs{where}{chosen}.{added}",
        meaning="it runs",
    )
    ENDED = ReasonKind(
        code="Ended",
        tier=Tier.NONE,
        sentence="It {ended}{because}.",
        meaning="it has ended",
    )
    NOT_LOOKED_AT = ReasonKind(
        code="NotLookedAtYet",
        tier=Tier.UNSEEN,
        sentence="No scheduling cycle has looked at it yet.",
        advice="The next cycle does, within seconds. If this stays, tell an admin: no scheduler may be leading.",
        meaning=(
            "no cycle has come to it since it was submitted; one cycle starts at most 2000 jobs, and the next one follows at once"
        ),
        see="how-to/runbooks/no-leader.md",
    )

    @property
    def tier(self) -> Tier:
        return self.kind.tier

    def reason(
        self, verdicts: "Sequence[Verdict]" = (), details: Mapping[str, Any] | None = None, /, **parts: str
    ) -> "Reason":
        """Return a reason with this token. ``parts``: those that its sentence and advice name; KeyError if one is missing."""
        return Reason(
            token=self,
            tier=self.tier,
            sentence=self.kind.sentence.format(**parts),
            advice=self.kind.advice.format(**parts),
            verdicts=tuple(verdicts),
            details=dict(details or {}),
        )

    def reason_for_ever(self, **parts: str) -> "Reason":
        """Return a reason with this token that waiting does not change."""
        sentence, advice = self.kind.sentence_for_ever, self.kind.advice_for_ever
        return Reason(
            token=self,
            tier=self.tier,
            sentence=sentence.format(**parts),
            advice=advice.format(**parts),
            for_ever=True,
        )


@dataclass(frozen=True, slots=True)
class CheckKind:
    """The texts and the token of a check."""

    code: str
    """As it is stored and shown: it never changes."""
    token: Token | None
    """The reason of a job that fails it on all clusters, or fails no nearer check on any. None: other parts of the state decide."""
    meaning: str
    """For the reference: the cluster ..."""


class Check(StrEnum):
    """The filter or fit test that a cluster failed first for a class of jobs.

    In the order of precedence: where clusters fail different checks, the first of these decides on the token, as it is the nearest to
    a start. A job that only lacks free capacity on one cluster is not called impossible for another one's sake.
    """

    def __new__(cls, kind: CheckKind) -> Self:
        member = str.__new__(cls, kind.code)
        member._value_ = kind.code
        return member

    def __init__(self, kind: CheckKind) -> None:
        self.kind = kind
        self.precedence = len(type(self).__members__)

    NONE = CheckKind("fits", None, "has room for it")
    START_CONDITION = CheckKind(
        "startCondition", Token.START_CONDITION, "does not meet a condition by which the job's queue starts jobs"
    )
    NO_ROOM = CheckKind("noRoom", Token.INSUFFICIENT_CAPACITY, "has too little free")
    RESERVED = CheckKind("reserved", Token.RESERVED, "is kept for another job")
    WINDOW = CheckKind("window", Token.RESERVED_FOR_QUEUE, "has nodes that an admin has reserved for a queue")
    COOLING_DOWN = CheckKind("coolingDown", Token.COOLING_DOWN, "returned this job a short while ago")
    QUOTA = CheckKind("quota", None, "would exceed a quota of a flavor with a product or a kind")
    BURST = CheckKind("burst", None, "is a public one that the burst policy does not let it go to")
    UNREACHABLE = CheckKind(
        "unreachable", Token.UNREACHABLE, "is out of contact, or its agent can start nothing there now"
    )
    NO_REPORT = CheckKind("noReport", Token.UNREACHABLE, "has not reported its capacity yet")
    CORDONED = CheckKind("cordoned", Token.CORDONED, "is closed to new jobs")
    NEVER_FITS = CheckKind("neverFits", Token.TOO_LARGE, "is too small even when it is empty")
    CAPABILITY = CheckKind("capability", Token.NOT_SUPPORTED, "has a runtime that lacks a feature")
    ADMISSION = CheckKind(
        "admission",
        Token.NOT_SUPPORTED,
        "refuses what the job's members run, by the policy that its agent checks by",
    )
    DATASET = CheckKind("dataset", Token.NOT_SUPPORTED, "lacks a dataset")
    NAME = CheckKind("name", Token.NO_CLUSTER_ALLOWED, "is not among those that the job names")
    KIND = CheckKind("kind", Token.NO_CLUSTER_ALLOWED, "is of a kind that the job or its queue does not allow")
    REGION = CheckKind(
        "region", Token.NO_CLUSTER_ALLOWED, "is in a region that the job, its queue or a dataset does not allow"
    )
    QUEUE = CheckKind("queue", Token.NO_CLUSTER_ALLOWED, "runs jobs of other queues only")
    SELECTOR = CheckKind("selector", Token.NO_CLUSTER_ALLOWED, "lacks a label that the job selects by")

    @property
    def token(self) -> Token | None:
        return self.kind.token


class Verdict(Lenient):
    """Verdict on one cluster for a class of jobs: the missing requirement, or that it is fit."""

    cluster: str
    """Name of the cluster."""
    check: Check
    """First check that the cluster failed, or the result if it failed none."""
    sentence: str
    """Sentence for people."""
    score: float | None = None
    """Total score of a cluster that fits."""


class Reason(Lenient):
    """The whole explanation of a job's place at one moment."""

    token: Token
    """Stable code of the reason, for programs."""
    tier: Tier
    """Tier of the reason."""
    sentence: str
    """Sentence that explains the state."""
    advice: str = ""
    """Sentence on what to do next, or on what happens by itself."""
    for_ever: bool = False
    """True if waiting does not help."""
    verdicts: tuple[Verdict, ...] = ()
    """Verdicts on the clusters."""
    details: dict[str, Any] = {}
    """Further values of the reason."""
    cycle: int | None = None
    """Number of the scheduler's cycle that found it."""
    at: Timestamp | None = None
    """Time at which it was found."""

    @property
    def has_no_turn(self) -> bool:
        """Return whether the job cannot start as it is, however long it waits, so that it is neither next nor ahead of others."""
        return self.for_ever or self.tier is Tier.CANNOT_RUN
