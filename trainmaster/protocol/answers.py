"""Answers of the API that hold several objects, or more fields than were declared."""

from typing import Annotated, Any

from pydantic import ConfigDict, Field, StringConstraints

from trainmaster.protocol.access import GrantView
from trainmaster.protocol.agent import ClusterHealth, NodeGroup, Pool
from trainmaster.protocol.base import Lenient, Strict, Timestamp, bounded, example, text_schema
from trainmaster.protocol.bursting import BurstPolicySpec, PolicyFigures
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.prices import PriceBookSpec
from trainmaster.protocol.queue_position import Factors, QueueFigures, StartForecast, Trial
from trainmaster.protocol.reasons import Reason
from trainmaster.protocol.role_bindings import RoleBindingSpec
from trainmaster.protocol.simulations import SimulationView
from trainmaster.protocol.states import Condition, ConditionState, GroupState, HoldCause, JobState, KeyRole
from trainmaster.protocol.tenants import (
    ClusterSpec,
    DatasetSpec,
    EventView,
    JobEventView,
    JobView,
    PriorityClassSpec,
    QueueSpec,
    ReservationSpec,
)

_IGNORES_UNKNOWN = ConfigDict(extra="ignore")
"""Declared objects in answers: an api of a newer version may send more fields."""


ParameterSet = Annotated[
    dict[
        Annotated[str, text_schema("^[A-Za-z_][A-Za-z0-9_]{0,62}$", 63, "rate")],
        Annotated[str, StringConstraints(max_length=4096)] | float,
    ],
    bounded(64, least=1),
]
"""The values of one job, by the names that stand in the specification as ``${name}``."""


class JobList(Strict):
    """Jobs to submit together: all are accepted or none."""

    jobs: Annotated[tuple[JobSpec, ...], bounded(10_000, least=1)]
    """Specifications of the jobs."""


class JobSweep(Strict):
    """One specification and a table of parameters: one job for each set."""

    model_config = example(
        job={
            "name": "sweep",
            "queue": "research/vision",
            "roles": [{"name": "main", "template": {"command": ["python", "train.py", "--rate", "${rate}"]}}],
        },
        parameters=[{"rate": 0.1}, {"rate": 0.01}],
    )

    job: JobSpec
    """Specification with placeholders such as ``${rate}``."""
    parameters: Annotated[tuple[ParameterSet, ...], bounded(100_000, least=1)]
    """Parameter sets, one for each job; all have the same names."""


class SubmissionWarning(Lenient):
    """Something in a valid submission that may be a mistake: it names what does not exist, and that may come later."""

    path: str
    """Path in the submission, such as ``jobs[0].placement.clusters[0]``."""
    message: str
    """Sentence that says what does not exist, with a similar name that does."""


class SubmittedJob(Lenient):
    """An accepted job."""

    model_config = example(id="bert-7k2p9xq")

    id: str
    """Id of the job."""
    warnings: tuple[SubmissionWarning, ...] = ()
    """Possible mistakes; missing if there are none, and for each of several jobs."""


class SubmittedJobs(Lenient):
    """Accepted jobs, in the given order."""

    jobs: tuple[SubmittedJob, ...]
    """The jobs, in the given order."""
    warnings: tuple[SubmissionWarning, ...] = ()
    """Possible mistakes in the jobs; missing if there are none."""


class TriedJob(Lenient):
    """A valid job of a dry run; ``trial`` is None if no leading scheduler answered."""

    name: str
    """Name of the job."""
    queue: str
    """Path of its queue."""
    held: bool = False
    """True if it would be held at first."""
    hold_cause: HoldCause | None = None
    """Cause for which it would be held."""
    count: int = 1
    """Number of jobs that the trial stands for: those of a table of parameters differ in nothing that decides where they run."""
    trial: Trial | None = None
    """Result of the trial; None if no leading scheduler answered."""


class DryRun(Lenient):
    """Result of a dry run. ``live``: whether the leading scheduler answered."""

    model_config = example(live=False, jobs=[{"name": "bert", "queue": "research/vision"}])

    live: bool
    """True if the leading scheduler answered."""
    jobs: tuple[TriedJob, ...]
    """The jobs, in the given order."""
    warnings: tuple[SubmissionWarning, ...] = ()
    """Possible mistakes in the jobs; missing if there are none."""


class JobPage(Lenient):
    """A page of jobs, newest first, and the cursor of the next page."""

    jobs: tuple[JobView, ...]
    """Jobs of the page."""
    next: str | None = None
    """Cursor of the next page; None on the last."""


class EventPage(Lenient):
    """Transitions of one job, oldest first."""

    events: tuple[EventView, ...]
    """Transitions."""


class JobEventPage(Lenient):
    """Transitions of many jobs, in the order in which they were committed, and the position behind them."""

    model_config = example(
        events=[
            {
                "job": "bert-7k2p9xq",
                "queue": "research/vision",
                "seq": 1,
                "at": "2026-11-24T08:00:00.000Z",
                "kind": "submitted",
                "states": ["queued"],
                "actor": "vision-team",
                "position": "MToxMDM0OjU6MToxNzY0MDYyODgw",
            }
        ],
        next="MToxMDM0OjU6MToxNzY0MDYyODgw",
        more=False,
    )

    events: tuple[JobEventView, ...]
    """Transitions that match. There may be fewer than asked for, or none, although there are more."""
    next: str
    """Position behind this page, from which the next page or a stream goes on."""
    more: bool = False
    """True if there are later transitions already."""
    missed: str | None = None
    """Reason for which transitions before these may be missing; None: none is missing."""


class DependencyView(Lenient):
    """A condition between two jobs."""

    model_config = example(job="prepare-0v9k3m2", state="running", condition="succeeded", conditionState="waiting")

    job: str
    """Id of the other job."""
    state: JobState
    """State of the other job."""
    condition: Condition
    """State that the predecessor must have come to."""
    condition_state: ConditionState
    """State of the condition: ``waiting``, ``met``, or ``never``, if it can no longer be met."""


class GroupDependencyView(Lenient):
    """A condition of a job on a group."""

    model_config = example(
        group="sweep-7", queue="research/vision", state="closed", condition="succeeded", conditionState="waiting"
    )

    group: str
    """Name of the group."""
    queue: str
    """Path of the group's queue."""
    state: GroupState
    """State of the group."""
    condition: Condition
    """State that the group must have come to."""
    condition_state: ConditionState
    """State of the condition: ``waiting``, ``met``, or ``never``, if it can no longer be met."""


class JobDependencies(Lenient):
    """Jobs after which a job starts, and jobs that start after it; of each the first 1,000 that the caller may see."""

    model_config = example(
        job="train-7k2p9xq",
        after=[
            {"job": "prepare-0v9k3m2", "state": "running", "condition": "succeeded", "conditionState": "waiting"},
        ],
        afterCount=1,
        dependants=[],
        dependantsCount=0,
    )

    job: str
    """Id of the job."""
    after: tuple[DependencyView, ...]
    """Conditions of the job on its predecessors: those that can no longer be met first, then those that are open."""
    after_count: int
    """Number of its conditions on jobs that the caller may see."""
    after_groups: tuple[GroupDependencyView, ...] = ()
    """Conditions of the job on groups of queues that the caller may use."""
    dependants: tuple[DependencyView, ...]
    """Conditions of other jobs on this one."""
    dependants_count: int
    """Number of conditions on this job of others that the caller may see."""


class JobReason(Reason):
    """Reason for which a job is in its state. The last nine fields are of queued jobs only."""

    model_config = example(
        job="bert-7k2p9xq",
        state="queued",
        token="InsufficientCapacity",  # noqa: S106 - the code of a reason
        tier="capacity",
        sentence="No cluster has 4 members' capacity free now.",
        advice="It starts when running jobs end.",
        live=True,
        queue="research/vision",
        position=3,
        jobsAhead=2,
        jobsInQueue=7,
    )

    job: str
    """Id of the job."""
    state: str
    """State of the job."""
    live: bool | None = None
    """True if the leading scheduler answered; if not, the place is unknown."""
    age_seconds: float | None = None
    """Age of the stored verdict that is shown instead."""
    queue: str | None = None
    """Path of its queue."""
    position: int | None = None
    """Place among the queued jobs of its queue; 1 is next. None for a job that cannot run as it is written."""
    jobs_ahead: int | None = None
    """Number of queued jobs before it in its queue, without those that cannot run as they are written."""
    jobs_in_queue: int | None = None
    """Number of queued jobs of its queue."""
    jobs_that_cannot_run: int | None = None
    """Number of those that cannot run as they are written."""
    factors: Factors | None = None
    """Factors of its place."""
    forecast: StartForecast | None = None
    """By when it is likely to start; None if too few such jobs have started, or the sentence says when it starts."""


class JobAction(Lenient):
    """Result of an action on one job."""

    model_config = example(id="bert-7k2p9xq", changed=True, state="cancelling")

    id: str
    """Id of the job."""
    changed: bool
    """True if the action changed the job; False if the job was in the requested state already."""
    state: str
    """State of the job after the action, as people see it."""


class BulkAnswer(Lenient):
    """Result of an action on many jobs: those matched but neither changed nor refused were in no state for it."""

    model_config = example(matched=12, changed=9, refused=1, dryRun=False)

    matched: int
    """Number of jobs that match the filter."""
    changed: int
    """Number of jobs that were changed; 0 in a dry run, which only counts those that match."""
    refused: int = 0
    """Number of matching jobs left out because others submitted them and their queue's ``jobActions`` is ``own``."""
    dry_run: bool = False
    """True if nothing was changed."""


class QueueView(QueueSpec):
    """A queue with its jobs by state; only leaves have jobs of their own."""

    model_config = _IGNORES_UNKNOWN | example(
        kind="Queue",
        path="research/vision",
        weight=2,
        resources={"nvidia.com/gpu": {"guaranteed": "16", "limit": "48"}},
        isLeaf=True,
        jobs={"queued": 3, "running": 2},
    )

    is_leaf: bool = True
    """True if no queue is below it."""
    jobs: dict[str, int] = Field(default_factory=dict)
    """Number of its unfinished jobs by state; of ended ones as well, if these were requested."""
    warnings: tuple[str, ...] = ()
    """Warnings, such as guarantees that are larger than the clusters."""
    usage: QueueFigures | None = None
    """Usage; None unless it was requested and the leading scheduler answered."""


class QueueList(Lenient):
    """Queues that the caller may see. ``live``: whether the leading scheduler reported their usage; set only if requested."""

    live: bool | None = None
    """True if the leading scheduler reported their usage; set only if requested."""
    queues: tuple[QueueView, ...]
    """Queues that the caller may see."""


class PriorityClassList(Lenient):
    """Priority classes, the highest first."""

    priority_classes: tuple[PriorityClassSpec, ...]
    """Priority classes."""


class ReservationList(Lenient):
    """Reservations, ordered by the start of their windows."""

    reservations: tuple[ReservationSpec, ...]
    """Reservations."""


class RoleBindingList(Lenient):
    """Role bindings."""

    role_bindings: tuple[RoleBindingSpec, ...]
    """Role bindings."""


class ClusterView(ClusterSpec):
    """A cluster with its contact and capacity. Only admins and the cluster's owners get the numbers of runs."""

    model_config = _IGNORES_UNKNOWN | example(
        kind="Cluster",
        name="west",
        clusterKind="private",
        region="eu-central",
        state="ready",
        cordoned=False,
        lastContact="2026-11-24T08:00:00.000Z",
        agentVersion="0.1.0",
        runtime="kubernetes",
        capacity={"cpu": "512", "memory": "4Ti", "nvidia.com/gpu": "32"},
        nodes=8,
    )

    state: str
    """State for people: ``ready``, ``cordoned``, ``draining``, ``drained``, ``closed``, ``unreachable`` or ``never
    connected``.
    """
    cordoned: bool = False
    """True if nothing new starts there."""
    draining: bool = False
    """True if it is being drained."""
    closed: str = ""
    """Reason for which no new job is sent to it; empty if jobs are."""
    last_contact: Timestamp | None = None
    """Time of the agent's last sync."""
    agent_version: str = ""
    """Version of its agent."""
    live_runs: int = 0
    """Number of live runs, for admins and owners."""
    stopping_runs: int = 0
    """Number of live runs that are being stopped, for admins and owners."""
    orphaned_runs: int = 0
    """Number of live runs of which its agent has no record, for admins and owners."""
    quarantined_runs: int = 0
    """Number of runs that its agent holds and the store lost, for admins and owners."""
    runtime: str | None = None
    """Runtime of its agent, such as ``kubernetes``."""
    scheduler: str | None = None
    """Scheduler in the cluster, such as ``kueue``."""
    capacity: dict[str, str] = Field(default_factory=dict)
    """Amounts by resource beside the use of others; live runs of Trainmaster are not subtracted."""
    nodes: int = 0
    """Number of nodes."""
    groups: tuple[NodeGroup, ...] = ()
    """Groups of equivalent nodes."""
    pools: tuple[Pool, ...] = ()
    """Pools of nodes that its autoscaler may grow."""
    capabilities: tuple[str, ...] = ()
    """Abilities of its agent, such as native gangs."""
    not_counted: tuple[str, ...] = ()
    """Sentences on nodes, amounts and pools that are left out of its capacity."""
    health: ClusterHealth | None = None
    """Numbers of nodes by state and trouble, as its agent reports them; missing where it does not. The names of nodes in trouble are
    for admins and owners."""


class ClusterList(Lenient):
    """Clusters that the caller's jobs may use."""

    clusters: tuple[ClusterView, ...]
    """Clusters."""


class CordonAnswer(Lenient):
    """State of a cluster after a cordon or an uncordon."""

    model_config = example(name="west", cordoned=True)

    name: str
    """Name of the cluster."""
    cordoned: bool
    """True if nothing new starts there."""


class DrainAnswer(Lenient):
    """Result of a drain: runs that were ordered to stop now, and runs left, these included."""

    model_config = example(name="west", stopped=2, liveRuns=2, reachable=True)

    name: str
    """Name of the cluster."""
    stopped: int
    """Number of runs that were ordered to stop now."""
    live_runs: int
    """Number of live runs left, stopping ones included."""
    reachable: bool = True
    """True if the cluster's agent is in contact."""


class LostRuns(Lenient):
    """Number of a cluster's runs that were declared lost."""

    model_config = example(name="west", lost=2)

    name: str
    """Name of the cluster."""
    lost: int
    """Number of runs."""


class QuarantinedRun(Lenient):
    """A run that a cluster's agent holds and that the store lost when it was restored from a backup."""

    model_config = example(run="bert-7k2p9xq.1", state="running", since="2026-11-24T08:00:00.000Z")

    run: str
    """Id of the run."""
    state: str
    """State that the agent reports."""
    stopping: bool = False
    """True if it was ordered to stop."""
    since: Timestamp
    """Time at which it was quarantined."""


class QuarantinedRuns(Lenient):
    """Quarantined runs of one cluster."""

    runs: tuple[QuarantinedRun, ...]
    """Runs."""


class StoppedQuarantined(Lenient):
    """Quarantined runs that are being stopped."""

    model_config = example(name="west", stopping=["bert-7k2p9xq.1"])

    name: str
    """Name of the cluster."""
    stopping: tuple[str, ...]
    """Ids of the runs."""


class KeyView(Lenient):
    """An API key without its secret, or a person who has signed in through OpenID Connect."""

    model_config = example(
        id=7,
        name="vision-team",
        hint="tmk_Q3vX",
        role="user",
        queues=["research/vision"],
        createdAt="2026-11-24T08:00:00.000Z",
    )

    id: int
    """Number of the key."""
    name: str
    """Name of the key."""
    hint: str = ""
    """Beginning of the secret."""
    role: KeyRole
    """Rights of the key."""
    queues: tuple[str, ...] = ()
    """Queues, with all below them, that a user's key may use."""
    clusters: tuple[str, ...] = ()
    """Clusters that an owner's key may look after."""
    cluster: str | None = None
    """Cluster whose agent has the key."""
    on_behalf_of: tuple[str, ...] = ()
    """Users for whom the key may submit; a * at the end of one stands for any text."""
    email: str | None = None
    """E-mail address of the key's user; None: an admin has set none, or the person's token has none."""
    issuer: str | None = None
    """OpenID Connect issuer of a person's account; None: this is an API key."""
    groups: tuple[str, ...] = ()
    """Groups of a person in the token that was last seen. Role, queues and clusters are then those that role bindings give now."""
    created_at: Timestamp
    """Time of its creation."""
    expires_at: Timestamp | None = None
    """Time from which it is invalid; None: it does not expire."""
    revoked_at: Timestamp | None = None
    """Time at which it was revoked."""
    last_used_at: Timestamp | None = None
    """Time of its last use, to the minute; None: never, or before this was recorded."""


class Identity(Lenient):
    """The key or the account of a call, and the dispatcher that answered."""

    model_config = example(id=7, name="vision-team", role="user", queues=["research/vision"], version="0.1.0")

    id: int
    """Number of the key."""
    name: str
    """Name of the key."""
    role: KeyRole
    """Role of the caller; of several, the first in the order of the documentation."""
    queues: tuple[str, ...] = ()
    """Queues, with all below them, for which the caller has a role."""
    clusters: tuple[str, ...] = ()
    """Clusters that an owner may look after."""
    roles: tuple[GrantView, ...] = ()
    """Roles of the caller, each with the queues that it is for; empty for owners of clusters."""
    permissions: tuple[str, ...] = ()
    """Permissions that the caller has in any queue or in the whole installation."""
    on_behalf_of: tuple[str, ...] = ()
    """Users for whom the key may submit; a * at the end of one stands for any text."""
    issuer: str | None = None
    """OpenID Connect issuer of the caller's account; None: the caller has an API key."""
    groups: tuple[str, ...] = ()
    """Groups of the caller in the token."""
    expires_at: Timestamp | None = None
    """Time from which the key or the token is invalid; None: it does not expire."""
    csrf_token: str | None = None
    """Value of the header X-Trainmaster-CSRF in calls of a browser that change something; None: the caller has a key or a token."""
    version: str
    """Version of the dispatcher."""


class SignInIssuer(Lenient):
    """An OpenID Connect issuer with whose accounts people sign in."""

    name: str
    """Name of the issuer."""
    issuer: str
    """Address of the issuer."""
    client_id: str
    """Client id with which the command line asks the issuer for tokens."""
    client_secret: str | None = None
    """Secret of this client, where the issuer wants one of programs on people's machines, which cannot keep it."""
    scopes: tuple[str, ...] = ()
    """Scopes to ask for; empty: the usual ones that the issuer knows."""
    begin: str | None = None
    """Path at which a browser begins to sign in; it may have return, a path to come back to. None: not by a browser."""


class SignIn(Lenient):
    """The ways to sign in: with an API key or, if there are issuers, with an account of one through OpenID Connect."""

    model_config = example(issuer="https://sso.example.com", clientId="trainmaster")

    issuer: str | None = None
    """Address of the first OpenID Connect issuer; None: there are only API keys."""
    client_id: str | None = None
    """Client id with which the command line asks the issuer for tokens."""
    client_secret: str | None = None
    """Secret of this client, where the issuer wants one of programs on people's machines, which cannot keep it."""
    issuers: tuple[SignInIssuer, ...] = ()
    """All issuers, the first one too."""
    browser: bool = False
    """True where people sign in by a browser with an account of an issuer, at /v1/sign-in/browser."""
    key: bool = False
    """True where people sign in by a browser with an API key, at /v1/sign-in/key."""


class SignedOut(Lenient):
    """The end of a browser's session, whose issuer has a session of its own."""

    model_config = example(
        endSessionUrl="https://sso.example.com/logout?client_id=trainmaster-web"
        "&post_logout_redirect_uri=https%3A%2F%2Ftrainmaster.example.com%2F"
    )

    end_session_url: str
    """Address at which the browser ends the session at the issuer; it comes back to the first page."""


class KeyList(Lenient):
    """API keys and people that the caller may see."""

    keys: tuple[KeyView, ...]
    """API keys."""


class NewKey(Lenient):
    """An API key just made. ``key`` is the secret, which is returned only once."""

    model_config = example(id=7, name="vision-team", role="user", key="tmk_...")

    id: int
    """Number of the key."""
    name: str
    """Name of the key."""
    role: KeyRole
    """Rights of the key."""
    key: str
    """Secret of the key, which is in this answer and nowhere else."""


class AgentKey(Lenient):
    """A key for a cluster's agent, just made."""

    model_config = example(
        cluster="west",
        created=True,
        key={"id": 8, "name": "agent-west", "role": "agent", "key": "tmk_..."},
        otherKeys=[],
    )

    cluster: str
    """Name of the cluster."""
    created: bool = False
    """True if the cluster was made in the same call."""
    key: NewKey
    """The new key."""
    other_keys: tuple[int, ...] = ()
    """Other valid keys of the cluster's agent."""
    revoked: tuple[int, ...] = ()
    """Numbers of the keys that were revoked."""


class AuditEntry(Lenient):
    """A change or a refused call: by whom, on what, in which request and from which address."""

    model_config = example(
        at="2026-11-24T08:00:00.000Z",
        actor="admin",
        action="put queue",
        target="research/vision",
        requestId="5d0c3f6a91b2e847",
        address="203.0.113.7",
        details={"before": {"weight": 1}, "after": {"weight": 2}},
    )

    at: Timestamp
    """Time of the call."""
    actor: str
    """Name of the key; empty if the call had no valid one."""
    action: str
    """Action, such as ``put queue``."""
    target: str
    """Name of the changed object, or the refused method and path."""
    request_id: str = ""
    """Id of the request, as in the dispatcher's log."""
    address: str = ""
    """Address of the caller."""
    details: dict[str, Any] = Field(default_factory=dict)
    """For a change ``before`` and ``after``; for a submission ``jobs``; for refused calls ``code``, ``detail`` and ``count``."""


class AuditPage(Lenient):
    """A page of entries, newest first, and the cursor of the next page."""

    audit: tuple[AuditEntry, ...]
    """Entries of the page."""
    next: str | None = None
    """Cursor of the next page; None on the last."""


class PriceBookList(Lenient):
    """Price books."""

    price_books: tuple[PriceBookSpec, ...]
    """Price books."""


class DatasetList(Lenient):
    """Declared datasets."""

    datasets: tuple[DatasetSpec, ...]
    """Datasets."""


class BurstPolicyView(BurstPolicySpec):
    """A burst policy and its state."""

    model_config = _IGNORES_UNKNOWN

    status: PolicyFigures | None = None
    """State of the policy; None if the leading scheduler did not report it, or it is not for the caller: see ``shared``."""
    shared: bool = False
    """True if the policy is also for queues that the caller may not use: what is at public clusters by it is not shown then."""
    open: bool | None = None
    """True if jobs may go by a shared policy now, as far as that does not depend on the job; None if the leading scheduler did not
    report it."""


class BurstPolicyList(Lenient):
    """Burst policies. ``live``: whether the leading scheduler reported their state."""

    live: bool
    """True if the leading scheduler reported their state."""
    currency: Annotated[str, Field(examples=["EUR"])]
    """Currency of the installation."""
    burst_policies: tuple[BurstPolicyView, ...]
    """Burst policies."""


class SimulationPage(Lenient):
    """Simulations, the latest first; ``next`` is the cursor of the next page."""

    simulations: tuple[SimulationView, ...]
    """Simulations of the page."""
    next: int | None
    """Cursor of the next page; None on the last."""


class WebhookSecrets(Lenient):
    """Secrets that sign webhook messages of a queue's jobs: ``secrets``, and until ``previous_until`` also ``previous``."""

    model_config = example(queue="research/vision", version=2, secrets=["whsec_..."], previous=[])

    queue: str
    """Path of the queue."""
    version: int
    """Version of the secret, which rises with each rotation."""
    secrets: tuple[str, ...]
    """Secrets of this version: one for each root secret of the installation."""
    previous: tuple[str, ...] = ()
    """Secrets of the version before, while they sign as well."""
    previous_until: Timestamp | None = None
    """Time until which messages are signed with the previous secrets, too."""


class DeadLetter(Lenient):
    """An undelivered message. ``hook`` is the index in the ``notify`` of the job or workflow."""

    model_config = example(
        id=31,
        job="bert-7k2p9xq",
        queue="research/vision",
        seq=6,
        hook=0,
        url="https://example.org/hook",
        states=["running", "failed"],
        attempts=12,
        error="the receiver answered 500",
        createdAt="2026-11-24T08:00:00.000Z",
        deadAt="2026-11-25T08:00:00.000Z",
    )

    id: int
    """Number of the message."""
    job: str | None = None
    """Id of the job; None of a workflow or a group."""
    workflow: str | None = None
    """Id of the workflow; None of a job or a group."""
    group: str | None = None
    """Name of the group that the message is about; None of a job or a workflow."""
    digest: str | None = None
    """Number of the digest of a user's events; None of other messages."""
    queue: str
    """Path of the queue of the job, the workflow or the group; empty of a digest."""
    seq: int
    """Version of the job, or number of the workflow's event, that the message reports; of a group, 1."""
    hook: int
    """Index in the ``notify`` of the job or workflow, or among the receivers of the group or the user."""
    url: str | None = None
    """Address of the webhook; ``mailto:`` and the address of e-mail; the format of a chat, ``+`` and its address."""
    states: tuple[str, ...] = ()
    """States that the job or workflow entered, in order; of a group, the one in which it ended."""
    attempts: int
    """Number of attempts to deliver it."""
    error: str = ""
    """Error of the last attempt."""
    created_at: Timestamp
    """Time of the transition."""
    dead_at: Timestamp
    """Time at which it was given up."""


class DeadLetterPage(Lenient):
    """A page of messages, newest first, and the cursor of the next page."""

    dead: tuple[DeadLetter, ...]
    """Messages of the page."""
    next: str | None = None
    """Cursor of the next page; None on the last."""
