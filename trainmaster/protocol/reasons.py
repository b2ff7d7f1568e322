"""Why a job is where it is: one token, its tier, a sentence, and what each cluster lacked."""

from enum import StrEnum
from typing import Any

from trainmaster.protocol.base import Lenient, Timestamp


class Tier(StrEnum):
    """How far a job has come towards a start; the first tier that blocks is the one that is told."""

    CANNOT_RUN = "cannot run as written"
    HELD = "held"
    QUOTA = "quota"
    CAPACITY = "capacity"
    PLACING = "being placed"
    UNSEEN = "not looked at yet"
    NONE = "not waiting"


class Token(StrEnum):
    """The stable code of a reason. Scripts match on these; sentences may change."""

    NO_CLUSTER_ALLOWED = "NoClusterAllowed"
    TOO_LARGE = "TooLarge"
    NOT_SUPPORTED = "NotSupported"
    NO_CLUSTERS = "NoClusters"
    HELD_BY_USER = "HeldByUser"
    SUSPENDED = "Suspended"
    BACKING_OFF = "BackingOff"
    START_TIME = "StartTime"
    DEPENDENCY = "Dependency"
    UNPLACEABLE = "Unplaceable"
    QUEUE_HELD = "QueueHeld"
    INTERNAL_ERROR = "InternalError"
    QUEUE_LIMIT = "QueueLimit"
    BORROWING_LIMIT = "BorrowingLimit"
    KEPT_FOR_OTHERS = "KeptForOthers"
    BEHIND_OTHERS = "BehindOthers"
    PREEMPTING = "Preempting"
    BURST_NOT_YET = "BurstNotYet"
    BURST_LIMIT = "BurstLimit"
    BURST_BUDGET = "BurstBudget"
    INSUFFICIENT_CAPACITY = "InsufficientCapacity"
    RESERVED = "ReservedForOthers"
    RESERVED_FOR_QUEUE = "ReservedForQueue"
    UNREACHABLE = "ClustersUnreachable"
    CORDONED = "ClustersCordoned"
    COOLING_DOWN = "CoolingDown"
    BEING_PLACED = "BeingPlaced"
    RUNNING = "Running"
    ENDED = "Ended"
    NOT_LOOKED_AT = "NotLookedAtYet"

    @property
    def tier(self) -> Tier:
        return _TIERS[self]


_TIERS = {
    Token.NO_CLUSTER_ALLOWED: Tier.CANNOT_RUN,
    Token.TOO_LARGE: Tier.CANNOT_RUN,
    Token.NOT_SUPPORTED: Tier.CANNOT_RUN,
    Token.NO_CLUSTERS: Tier.CAPACITY,
    Token.HELD_BY_USER: Tier.HELD,
    Token.SUSPENDED: Tier.HELD,
    Token.BACKING_OFF: Tier.HELD,
    Token.START_TIME: Tier.HELD,
    Token.DEPENDENCY: Tier.HELD,
    Token.UNPLACEABLE: Tier.HELD,
    Token.QUEUE_HELD: Tier.HELD,
    Token.INTERNAL_ERROR: Tier.HELD,
    Token.QUEUE_LIMIT: Tier.QUOTA,
    Token.BORROWING_LIMIT: Tier.QUOTA,
    Token.KEPT_FOR_OTHERS: Tier.QUOTA,
    Token.BEHIND_OTHERS: Tier.QUOTA,
    Token.PREEMPTING: Tier.QUOTA,
    Token.BURST_NOT_YET: Tier.CAPACITY,
    Token.BURST_LIMIT: Tier.CAPACITY,
    Token.BURST_BUDGET: Tier.CAPACITY,
    Token.INSUFFICIENT_CAPACITY: Tier.CAPACITY,
    Token.RESERVED: Tier.CAPACITY,
    Token.RESERVED_FOR_QUEUE: Tier.CAPACITY,
    Token.UNREACHABLE: Tier.CAPACITY,
    Token.CORDONED: Tier.CAPACITY,
    Token.COOLING_DOWN: Tier.CAPACITY,
    Token.BEING_PLACED: Tier.PLACING,
    Token.RUNNING: Tier.NONE,
    Token.ENDED: Tier.NONE,
    Token.NOT_LOOKED_AT: Tier.UNSEEN,
}


class Check(StrEnum):
    """The filter or fit test that a cluster failed first for a class of jobs."""

    NONE = "fits"
    KIND = "kind"
    NAME = "name"
    REGION = "region"
    QUEUE = "queue"
    SELECTOR = "selector"
    DATASET = "dataset"
    CAPABILITY = "capability"
    ADMISSION = "admission"
    CORDONED = "cordoned"
    UNREACHABLE = "unreachable"
    NO_REPORT = "noReport"
    COOLING_DOWN = "coolingDown"
    QUOTA = "quota"
    NEVER_FITS = "neverFits"
    NO_ROOM = "noRoom"
    RESERVED = "reserved"
    WINDOW = "window"
    BURST = "burst"


class Verdict(Lenient):
    """What one cluster lacked for a class of jobs, or that it was fit."""

    cluster: str
    check: Check
    sentence: str
    score: float | None = None


class Reason(Lenient):
    """The whole explanation of a job's place at one moment."""

    token: Token
    tier: Tier
    sentence: str
    advice: str = ""
    for_ever: bool = False
    """Whether waiting does not help."""
    verdicts: tuple[Verdict, ...] = ()
    details: dict[str, Any] = {}
    cycle: int | None = None
    at: Timestamp | None = None
