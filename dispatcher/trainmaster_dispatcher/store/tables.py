"""The tables. Hot rows are narrow; specs are insert-only; events are partitioned by day.

Migrations in ``migrations/trainmaster_migrations`` create them; a test keeps both equal.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    DateTime,
    Double,
    Enum,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.types import UserDefinedType

from trainmaster.protocol.states import (
    ClusterKind,
    HoldCause,
    JobState,
    RunState,
    StopCause,
    Wish,
)


class Xid8(UserDefinedType[str]):
    """A 64-bit transaction id, by which the change feed orders committed rows."""

    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        return "xid8"


metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _enum(members: type, name: str) -> Enum:
    return Enum(*[member.value for member in members], name=name)  # type: ignore[attr-defined]


def _now() -> Column[object]:
    return Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now())


def _xid() -> Column[object]:
    return Column("xid", Xid8(), nullable=False, server_default=text("pg_current_xact_id()"))


LIVE_RUN = LIVE_JOB = "ended_at IS NULL"
WAITS_SINCE = "greatest(j.submitted_at, j.eligible_at)"
"""The moment since when a job ``j`` waits for its turn: its submission, or its start time."""
WAITING_JOB = "state IN ('held', 'queued')"
DUE_DEADLINE = f"deadline IS NOT NULL AND deadline_noted < 2 AND {LIVE_JOB}"
"""Jobs whose deadlines have not passed, or not been noted as missed."""

installation = Table(
    "installation",
    metadata,
    Column("one", Boolean, primary_key=True, server_default=text("true")),
    Column("id", Uuid(), nullable=False, server_default=func.gen_random_uuid()),
    Column("store_epoch", Integer, nullable=False, server_default=text("1")),
    Column("up_since", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("seen_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    _now(),
    Column("recovering_since", DateTime(timezone=True)),
    CheckConstraint("one", name="one"),
)

leadership = Table(
    "leadership",
    metadata,
    Column("one", Boolean, primary_key=True, server_default=text("true")),
    Column("token", BigInteger, nullable=False, server_default=text("0")),
    Column("holder", Text, nullable=False, server_default=text("''")),
    Column("expires_at", DateTime(timezone=True), nullable=False, server_default=text("'epoch'")),
    Column("reads", JSONB()),
    CheckConstraint("one", name="one"),
    comment="reads: where the holder answers questions about its view, and with which secret.",
)

reservations = Table(
    "reservations",
    metadata,
    Column("id", Integer, Identity(), primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("queue_id", Integer, ForeignKey("queues.id"), nullable=False),
    Column("starts_at", DateTime(timezone=True), nullable=False),
    Column("ends_at", DateTime(timezone=True), nullable=False),
    Column("spec", JSONB(), nullable=False),
    _now(),
    Index(None, "queue_id"),
    comment="Nodes that admins keep for a queue in a window of time.",
)

queue_usage = Table(
    "queue_usage",
    metadata,
    Column("queue_id", Integer, primary_key=True, autoincrement=False),
    Column("level", Double, nullable=False),
    Column("at", Double, nullable=False),
    comment="What queues have used before, as the leader last counted it; at: seconds since the epoch, alike in all rows.",
)

user_usage = Table(
    "user_usage",
    metadata,
    Column("queue_id", Integer, ForeignKey("queues.id", ondelete="CASCADE"), nullable=False),
    Column("submitter", Text, nullable=False),
    Column("level", Double, nullable=False),
    Column("at", Double, nullable=False),
    PrimaryKeyConstraint("queue_id", "submitter"),
    comment="What users have used in queues before, as the leader last counted it; at: seconds since the epoch, alike in all rows.",
)

priority_classes = Table(
    "priority_classes",
    metadata,
    Column("id", SmallInteger, Identity(), primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("value", Integer, nullable=False),
    Column("is_default", Boolean, nullable=False, server_default=text("false")),
    Column("spec", JSONB(), nullable=False),
    _now(),
)

queues = Table(
    "queues",
    metadata,
    Column("id", Integer, Identity(), primary_key=True),
    Column("path", Text, nullable=False, unique=True),
    Column("parent_id", Integer, ForeignKey("queues.id"), index=True),
    Column("spec", JSONB(), nullable=False),
    _now(),
)

webhook_secrets = Table(
    "webhook_secrets",
    metadata,
    Column("path", Text, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("previous_until", DateTime(timezone=True)),
    comment="Of queues whose secret was changed; kept when the queue is removed, so that another one of its path gets another.",
)

clusters = Table(
    "clusters",
    metadata,
    Column("id", Integer, Identity(), primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("kind", _enum(ClusterKind, "cluster_kind"), nullable=False),
    Column("spec", JSONB(), nullable=False),
    Column("cordoned", Boolean, nullable=False, server_default=text("false")),
    Column("draining", Boolean, nullable=False, server_default=text("false")),
    Column("removed_at", DateTime(timezone=True)),
    _now(),
    comment="removed_at: its runs are kept, so its row is; for everybody else it is not there.",
)

price_books = Table(
    "price_books",
    metadata,
    Column("id", Integer, Identity(), primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("spec", JSONB(), nullable=False),
    _now(),
)

tariffs = Table(
    "tariffs",
    metadata,
    Column("cluster_id", Integer, ForeignKey("clusters.id", ondelete="CASCADE"), nullable=False),
    Column("since", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("book", JSONB()),
    Column("correction", Text, nullable=False),
    PrimaryKeyConstraint("cluster_id", "since"),
    comment="What clusters have charged from a moment on, as their price books were then. Insert-only.",
)

burst_policies = Table(
    "burst_policies",
    metadata,
    Column("id", Integer, Identity(), primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("spec", JSONB(), nullable=False),
    Column("revision", Integer, nullable=False, server_default=text("1")),
    Column("removed_at", DateTime(timezone=True)),
    _now(),
    comment="revision: rises with each change. One that was removed keeps its key: made again, it goes on with what was spent.",
)

policy_spend = Table(
    "policy_spend",
    metadata,
    Column("policy_id", Integer, nullable=False, autoincrement=False),
    Column("hour", DateTime(timezone=True), nullable=False),
    Column("cost", Numeric(), nullable=False),
    PrimaryKeyConstraint("policy_id", "hour"),
    comment="What counted runs by a burst policy have cost, in billionths of the currency.",
)

budget_warnings = Table(
    "budget_warnings",
    metadata,
    Column("policy_id", Integer, nullable=False, autoincrement=False),
    Column("span", Text, nullable=False),
    Column("since", DateTime(timezone=True), nullable=False),
    Column("part", Double, nullable=False),
    _now(),
    PrimaryKeyConstraint("policy_id", "span", "since", "part"),
    comment="Which parts of a budget were used up, so that each is told once; since: the begin of its hour, day or month.",
)

provisionings = Table(
    "provisionings",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("cluster_id", Integer, nullable=False),
    Column("pool", Text, nullable=False),
    Column("at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("seconds", Double),
    Index("ix_provisionings_pool", "cluster_id", "pool", "at"),
    comment="How long members waited for nodes that a pool had to add; NULL: they never came. Insert-only.",
)

datasets = Table(
    "datasets",
    metadata,
    Column("id", Integer, Identity(), primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("spec", JSONB(), nullable=False),
    _now(),
)

role_bindings = Table(
    "role_bindings",
    metadata,
    Column("id", Integer, Identity(), primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("spec", JSONB(), nullable=False),
    Column("revision", Integer, nullable=False, server_default=text("1")),
    _now(),
    comment="Roles of people of the OpenID Connect issuer. revision: rises with each change.",
)

field_owners = Table(
    "field_owners",
    metadata,
    Column("kind", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("applier", Text, nullable=False),
    Column("fields", JSONB(), nullable=False, server_default=text("'[]'")),
    Column("created", Boolean, nullable=False, server_default=text("false")),
    Column("applied_at", DateTime(timezone=True)),
    PrimaryKeyConstraint("kind", "name", "applier"),
    Index(None, "applier"),
    comment="Fields of declared objects by who has set them. applied_at: NULL for who has changed the object by itself.",
)

declared_revisions = Table(
    "declared_revisions",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("kind", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("actor", Text, nullable=False),
    Column("applier", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("spec", JSONB()),
    UniqueConstraint("kind", "name", "revision"),
    comment="What declared objects were after each change; spec NULL: the object was removed. Insert-only.",
)

declared_metadata = Table(
    "declared_metadata",
    metadata,
    Column("kind", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("labels", JSONB()),
    Column("annotations", JSONB()),
    Column("spec", JSONB()),
    PrimaryKeyConstraint("kind", "name"),
    comment="What Kubernetes has of declared objects beside their specifications. spec: as it was written last by the Kubernetes API.",
)

cluster_troubles = Table(
    "cluster_troubles",
    metadata,
    Column("cluster_id", Integer, primary_key=True, autoincrement=False),
    Column("level", Double, nullable=False),
    Column("at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    comment="Runs that a cluster has returned or lost, each of which counts half as much after each hour; level: at that moment.",
)

usage = Table(
    "usage",
    metadata,
    Column("hour", DateTime(timezone=True), nullable=False),
    Column("queue_id", Integer, nullable=False),
    Column("api_key_id", Integer, nullable=False),
    Column("cluster_id", Integer, nullable=False),
    Column("labels", JSONB(), nullable=False),
    Column("resource", Text, nullable=False),
    Column("product", Text, nullable=False),
    Column("spot", Boolean, nullable=False),
    Column("amount", Numeric(), nullable=False),
    Column("cost", Numeric(), nullable=False),
    PrimaryKeyConstraint("hour", "queue_id", "api_key_id", "cluster_id", "labels", "resource", "product", "spot"),
    comment="What ended runs have used: units of the resource times microseconds, and billionths of the currency. An empty"
    " resource counts members.",
)

class_usage = Table(
    "class_usage",
    metadata,
    Column("hour", DateTime(timezone=True), nullable=False),
    Column("queue_id", Integer, nullable=False),
    Column("class_id", Integer, nullable=False),
    Column("api_key_id", Integer, nullable=False),
    Column("cluster_id", Integer, nullable=False),
    Column("labels", JSONB(), nullable=False),
    Column("resource", Text, nullable=False),
    Column("product", Text, nullable=False),
    Column("spot", Boolean, nullable=False),
    Column("amount", Numeric(), nullable=False),
    Column("cost", Numeric(), nullable=False),
    Column("charge", Numeric(), nullable=False),
    PrimaryKeyConstraint(
        "hour", "queue_id", "class_id", "api_key_id", "cluster_id", "labels", "resource", "product", "spot"
    ),
    comment="As usage, by priority class; charge: the cost times the factors of class and queue. Usage that releases before"
    " this table counted is in usage.",
)

class_waits = Table(
    "class_waits",
    metadata,
    Column("month", DateTime(timezone=True), nullable=False),
    Column("queue_id", Integer, nullable=False),
    Column("class_id", Integer, nullable=False),
    Column("met", BigInteger, nullable=False),
    Column("missed", BigInteger, nullable=False),
    Column("held", BigInteger, nullable=False),
    Column("seconds_late", Double, nullable=False),
    Column("most_seconds_late", Double, nullable=False),
    PrimaryKeyConstraint("month", "queue_id", "class_id"),
    comment="Jobs that first had nodes in a month, by whether that was within their class's longestWait after submission. held:"
    " later, but held before. seconds_late: the sum of the time beyond it of those that missed it.",
)

agent_sessions = Table(
    "agent_sessions",
    metadata,
    Column("session", Text, primary_key=True),
    Column("cluster_id", Integer, ForeignKey("clusters.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("holder", Text, nullable=False),
    _now(),
)

cluster_holders = Table(
    "cluster_holders",
    metadata,
    Column("cluster_id", Integer, ForeignKey("clusters.id", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("holder", Text, nullable=False),
    Column("place", Text, nullable=False, server_default=text("''")),
    Column("place_since", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("contact_at", DateTime(timezone=True)),
    _now(),
    UniqueConstraint("cluster_id", "holder"),
    comment="Agents' records that this cluster has had. place: where its members live, since place_since."
    " contact_at: its last contact before another holder took over.",
)

cluster_contacts = Table(
    "cluster_contacts",
    metadata,
    Column("cluster_id", Integer, ForeignKey("clusters.id", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("session", Text),
    Column("holder", Text),
    Column("number", BigInteger, nullable=False, server_default=text("0")),
    Column("lease_until", DateTime(timezone=True), nullable=False, server_default=text("'epoch'")),
    Column("contact_at", DateTime(timezone=True), nullable=False, server_default=text("'epoch'")),
    Column("earlier_contact_at", DateTime(timezone=True)),
    Column("agent_version", Text, nullable=False, server_default=text("''")),
    Column("checked_count", Integer),
    Column("checked_digest", BigInteger),
    Column("checked_at", DateTime(timezone=True)),
    Column("recovered_at", DateTime(timezone=True)),
    comment="Rewritten at each sync, hence apart from clusters. earlier_contact_at: last contact of the holder before this one.",
)

quarantined_runs = Table(
    "quarantined_runs",
    metadata,
    Column("cluster_id", Integer, ForeignKey("clusters.id", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("run", Text, primary_key=True),
    Column("digest", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("stop", Boolean, nullable=False, server_default=text("false")),
    _now(),
    comment="Live runs that agents hold and that the store has forgotten since it was restored. stop: an admin wants their end.",
)

cluster_desired = Table(
    "cluster_desired",
    metadata,
    Column("cluster_id", Integer, ForeignKey("clusters.id", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("version", BigInteger, nullable=False, server_default=text("0")),
    comment="The row's lock makes the order of versions the order of commits.",
)

capacity = Table(
    "capacity",
    metadata,
    Column("cluster_id", Integer, ForeignKey("clusters.id", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("report", JSONB(), nullable=False),
    Column("received_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Integer, Identity(), primary_key=True),
    Column("name", Text, nullable=False),
    Column("hash", LargeBinary, nullable=False, unique=True),
    Column("hint", Text, nullable=False),
    # Keys with other roles are stored as a user's without queues: the release before reads every role that is stored.
    Column("role", Enum("admin", "user", "agent", name="key_role"), nullable=False),
    Column("queues", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    Column("cluster_id", Integer, ForeignKey("clusters.id", ondelete="CASCADE"), index=True),
    _now(),
    Column("expires_at", DateTime(timezone=True)),
    Column("revoked_at", DateTime(timezone=True)),
    Column("last_used_at", DateTime(timezone=True), comment="To the minute; null: not since this was recorded."),
    Column(
        "clusters",
        ARRAY(Integer),
        comment="Clusters of an owner's key, whose role is stored as user; null: the key is no owner's.",
    ),
    Column(
        "on_behalf_of",
        ARRAY(Text),
        nullable=False,
        server_default=text("'{}'"),
        comment="Users for whom the key may submit; * at the end of one stands for any text.",
    ),
    Column("granted_role", Text, comment="A role that the type key_role does not have; NULL: role says it."),
    Column("granted_queues", ARRAY(Text), comment="Queues of the granted role; empty: the whole installation."),
    Column("email", Text, comment="The user's own address, by the issuer's token or set by an admin; NULL: unknown."),
    Column(
        "through_id",
        Integer,
        comment="Not null: no key but a user whose jobs come through that key; it authenticates nobody.",
    ),
    Column(
        "issuer",
        Text,
        comment="Not null: no key but a person who has signed in with an account of this OpenID Connect issuer; the hash"
        " authenticates nobody.",
    ),
    Column("subject", Text),
    Column("groups", ARRAY(Text), comment="Groups of a person in the token that was last seen."),
    Index(
        "uq_api_keys_through_id_name",
        "through_id",
        "name",
        unique=True,
        postgresql_where=text("through_id IS NOT NULL"),
    ),
    Index(
        "uq_api_keys_issuer_subject",
        "issuer",
        "subject",
        unique=True,
        postgresql_where=text("issuer IS NOT NULL"),
    ),
    CheckConstraint("(role = 'agent') = (cluster_id IS NOT NULL)", name="agent_has_cluster"),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("api_key_id", Integer, nullable=False),
    Column("route", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("body_hash", LargeBinary, nullable=False),
    Column("status", SmallInteger, nullable=False),
    Column("answer", LargeBinary, nullable=False),
    _now(),
    PrimaryKeyConstraint("api_key_id", "route", "key"),
    Index(None, "created_at"),
)

audit = Table(
    "audit",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("api_key_id", Integer),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("request_id", Text, nullable=False, server_default=text("''")),
    Column("details", JSONB(), nullable=False, server_default=text("'{}'")),
    Column("address", Text, nullable=False, server_default=text("''")),
)

changes = Table(
    "changes",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    _xid(),
    Column("kind", Text, nullable=False),
    Column("ref", BigInteger, nullable=False),
    _now(),
    Column("many", Integer, nullable=False, server_default=text("1")),
    Index(None, "xid", "id"),
    comment="The feed of everything the scheduler reads beside jobs: queues, classes, clusters, capacity.",
)

shapes = Table(
    "shapes",
    metadata,
    Column("id", Integer, Identity(), primary_key=True),
    Column("hash", LargeBinary, nullable=False, unique=True),
    Column("body", JSONB(), nullable=False),
    Column("used_on", Date, nullable=False, server_default=func.current_date()),
    comment="used_on: the day of the last submission. Retention goes by it.",
)

job_specs = Table(
    "job_specs",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("spec", JSONB(), nullable=False),
    Column("last_job_id", BigInteger),
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("version", Integer, nullable=False, server_default=text("1")),
    Column("name", Text, nullable=False),
    Column("queue_id", Integer, nullable=False),
    Column("class_id", SmallInteger, nullable=False),
    Column("priority", SmallInteger, nullable=False, server_default=text("0")),
    Column("shape_id", Integer, nullable=False),
    Column("spec_id", BigInteger, nullable=False),
    Column("api_key_id", Integer, nullable=False),
    Column("submitted_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("state", _enum(JobState, "job_state"), nullable=False),
    Column("hold_cause", _enum(HoldCause, "hold_cause")),
    Column("hold_until", DateTime(timezone=True)),
    Column("wish", _enum(Wish, "wish")),
    Column("attempt", Integer, nullable=False, server_default=text("0")),
    Column("retries_used", SmallInteger, nullable=False, server_default=text("0")),
    Column("losses", SmallInteger, nullable=False, server_default=text("0")),
    Column("returns", SmallInteger, nullable=False, server_default=text("0")),
    Column("started_at", DateTime(timezone=True)),
    Column("ended_at", DateTime(timezone=True)),
    Column("message", Text, nullable=False, server_default=text("''")),
    Column("labels", JSONB()),
    Column("parameters", JSONB()),
    Column("notifies", Boolean, nullable=False, server_default=text("false")),
    Column("disconnect_seconds", Double),
    Column(
        "eligible_at",
        DateTime(timezone=True),
        comment="Since then it waits for its turn, or will; NULL: since its submission.",
    ),
    Column(
        "awaits_jobs",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="It has conditions on other jobs that are not all met.",
    ),
    Column("elements", Integer, comment="Number of elements of an array; NULL: it is none."),
    Column("has_element_jobs", Boolean, comment="Whether its elements are jobs of their own; NULL: they are not."),
    Column("deadline", DateTime(timezone=True), comment="It should have ended by then; NULL: it has none."),
    Column(
        "deadline_noted",
        SmallInteger,
        nullable=False,
        server_default=text("0"),
        comment="Its last event about its deadline: 0 none, 1 at risk, 2 missed.",
    ),
    Column(
        "predecessor_clusters",
        JSONB(),
        comment="By cluster, the part of the jobs that it started after whose last run was there; NULL: of none that ran.",
    ),
    Column("group_id", BigInteger, comment="The group that it belongs to; NULL: none."),
    Column(
        "trace",
        LargeBinary,
        comment="Trace and span of its submission, 24 bytes; NULL: it belongs to no trace that is sampled.",
    ),
    CheckConstraint("(ended_at IS NOT NULL) = (state IN ('succeeded', 'failed', 'cancelled'))", name="ended"),
    Index("ix_jobs_live", "queue_id", "id", postgresql_where=text(LIVE_JOB)),
    Index("ix_jobs_release", "hold_until", postgresql_where=text("hold_until IS NOT NULL")),
    Index("ix_jobs_queue", "queue_id", "id"),
    Index("ix_jobs_deadline", "deadline", postgresql_where=text(DUE_DEADLINE)),
    Index("ix_jobs_labels", "labels", postgresql_using="gin", postgresql_where=text("labels IS NOT NULL")),
    Index("ix_jobs_name", "name", "id", postgresql_ops={"name": "text_pattern_ops"}),
    Index("ix_jobs_submitter", "api_key_id", "id"),
    Index("ix_jobs_group", "group_id", "id", postgresql_where=text("group_id IS NOT NULL")),
    Index("ix_jobs_group_live", "group_id", "id", postgresql_where=text(f"group_id IS NOT NULL AND {LIVE_JOB}")),
)

job_groups = Table(
    "job_groups",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("queue_id", Integer, nullable=False),
    Column("name", Text, nullable=False),
    Column("api_key_id", Integer, nullable=False),
    Column("state", Text, nullable=False, server_default=text("'open'")),
    _now(),
    Column("changed_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("closed_at", DateTime(timezone=True)),
    Column("ended_at", DateTime(timezone=True)),
    Column("notified_at", DateTime(timezone=True)),
    Column("total", BigInteger, nullable=False, server_default=text("0")),
    Column("succeeded", BigInteger, nullable=False, server_default=text("0")),
    Column("failed", BigInteger, nullable=False, server_default=text("0")),
    Column("cancelled", BigInteger, nullable=False, server_default=text("0")),
    UniqueConstraint("queue_id", "name"),
    Index(None, "name"),
    Index("ix_job_groups_queue", "queue_id", "id"),
    Index("ix_job_groups_closed", "id", postgresql_where=text("state = 'closed'")),
    comment="Jobs that belong together. api_key_id: who began it. total and numbers of ended jobs: without what is still in"
    " group_changes, with jobs that were removed. changed_at: when these numbers changed last. notified_at: when it had ended for the"
    " first time.",
)

group_changes = Table(
    "group_changes",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("group_id", BigInteger, nullable=False),
    Column("total", Integer, nullable=False, server_default=text("0")),
    Column("succeeded", Integer, nullable=False, server_default=text("0")),
    Column("failed", Integer, nullable=False, server_default=text("0")),
    Column("cancelled", Integer, nullable=False, server_default=text("0")),
    Index(None, "group_id"),
    comment="Changes of the numbers of groups that are not in their rows yet. Rows are inserted and deleted, never updated, so that"
    " those who submit and end jobs do not wait for each other.",
)

group_hooks = Table(
    "group_hooks",
    metadata,
    Column("group_id", BigInteger, primary_key=True, autoincrement=False),
    Column("url", Text, primary_key=True),
    comment="Webhooks that get a message when a group has ended.",
)

group_dependencies = Table(
    "group_dependencies",
    metadata,
    Column("job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("group_id", BigInteger, primary_key=True, autoincrement=False),
    Column("condition", Text, primary_key=True),
    Column("verdict", Text, nullable=False),
    Index(None, "group_id"),
    comment="Conditions of jobs on groups. verdict: waiting, met or never; never: unless a job of the group is tried again.",
)

arrays = Table(
    "arrays",
    metadata,
    Column("job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("token", Text, nullable=False),
    Column("succeeded", Integer, nullable=False, server_default=text("0")),
    Column("failed", Integer, nullable=False, server_default=text("0")),
    Column("cancelled", Integer, nullable=False, server_default=text("0")),
    Column("running", Integer, nullable=False, server_default=text("0")),
    Column("suspended", Boolean, nullable=False, server_default=text("false")),
    Column("message", Text, nullable=False, server_default=text("''")),
    Column("next_look", DateTime(timezone=True)),
    Index("ix_arrays_next_look", "next_look", postgresql_where=text("next_look IS NOT NULL")),
    comment="Arrays of which something has happened: numbers of elements by state. token: secret of the members that run elements."
    " Of those whose elements are jobs: suspended: these were suspended with the array; message: why no further ones are submitted;"
    " next_look: when that is tried again.",
)

element_jobs = Table(
    "element_jobs",
    metadata,
    Column("array_id", BigInteger, primary_key=True, autoincrement=False),
    Column("element", Integer, primary_key=True, autoincrement=False),
    Column("job_id", BigInteger, nullable=False),
    Column("counted", Boolean, nullable=False, server_default=text("false")),
    Index("uq_element_jobs_job_id", "job_id", unique=True),
    Index("ix_element_jobs_open", "array_id", postgresql_where=text("NOT counted")),
    comment="Jobs of the elements of arrays, the latest of each. counted: its end is in the bitmaps of the array.",
)

array_predecessors = Table(
    "array_predecessors",
    metadata,
    Column("job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("on_job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("condition", Text, primary_key=True),
    Column("on_failure", Text, nullable=False),
    Index("ix_array_predecessors_on_job_id", "on_job_id"),
    comment="Arrays whose elements those of an array wait for, each for the one with its index.",
)

array_wakes = Table(
    "array_wakes",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("array_id", BigInteger, nullable=False),
    Index("ix_array_wakes_array_id", "array_id"),
    comment="Arrays of which something has changed that the scheduler has not dealt with. Rows are inserted and deleted, never"
    " updated, so that those who end jobs do not wait for each other.",
)

array_blocks = Table(
    "array_blocks",
    metadata,
    Column("job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("block", Integer, primary_key=True, autoincrement=False),
    Column("succeeded", LargeBinary, nullable=False),
    Column("failed", LargeBinary, nullable=False),
    Column("cancelled", LargeBinary, nullable=False),
    comment="Bitmaps of the ended elements of arrays, 32768 elements in each block.",
)

array_failures = Table(
    "array_failures",
    metadata,
    Column("job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("element", Integer, primary_key=True, autoincrement=False),
    Column("exit_code", Integer),
    Column("signal", SmallInteger),
    Column("message", Text, nullable=False),
    comment="What is known of failed elements; of many of an array, of some only.",
)

array_results = Table(
    "array_results",
    metadata,
    Column("job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("elements", Text, nullable=False),
    comment="What elements of arrays returned, in the order in which it came. elements: a JSON list of [element, value].",
)

files = Table(
    "files",
    metadata,
    Column("queue_id", Integer, primary_key=True, autoincrement=False),
    Column("sha256", Text, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("key", Text, nullable=False),
    _now(),
    Column("used_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Index("ix_files_used_at", "used_at"),
    comment="Archives that users have uploaded for jobs of a queue. key: its name in the file store. used_at: when it was last"
    " uploaded, or a job that uses it was last submitted.",
)

file_uses = Table(
    "file_uses",
    metadata,
    Column("spec_id", BigInteger, primary_key=True, autoincrement=False),
    Column("queue_id", Integer, nullable=False),
    Column("sha256", Text, primary_key=True),
    Index("ix_file_uses_files", "queue_id", "sha256"),
    comment="Specifications of jobs, and the files of their queue that they name.",
)

artifacts = Table(
    "artifacts",
    metadata,
    Column("job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("name", Text, primary_key=True),
    Column("queue_id", Integer, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("key", Text, nullable=False),
    _now(),
    Index("ix_artifacts_queue_id", "queue_id"),
    comment="Archives that runs have left, one for each output of a run. key: its name in the file store.",
)

artifact_inputs = Table(
    "artifact_inputs",
    metadata,
    Column("job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("input", SmallInteger, primary_key=True, autoincrement=False),
    Column("on_job_id", BigInteger, nullable=False),
    Column("name", Text, nullable=False),
    Index("ix_artifact_inputs_on_job_id", "on_job_id"),
    comment="Inputs of jobs that are artifacts of others. input: its place in the specification.",
)

file_uploads = Table(
    "file_uploads",
    metadata,
    Column("id", Text, primary_key=True),
    Column("queue_id", Integer, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("job_id", BigInteger),
    Column("attempt", Integer),
    Column("name", Text),
    _now(),
    Index("ix_file_uploads_queue_id", "queue_id"),
    Index("ix_file_uploads_created_at", "created_at"),
    comment="Uploads under way: of users, or, with job_id, of an output of a run.",
)

file_removals = Table(
    "file_removals",
    metadata,
    Column("key", Text, primary_key=True),
    _now(),
    comment="Keys in the file store whose data is to be removed from it.",
)

run_files = Table(
    "run_files",
    metadata,
    Column("job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("token", Text, nullable=False),
    Column("required", ARRAY(Text()), nullable=False),
    Column("problem", Text, nullable=False, server_default=text("''")),
    comment="Runs whose agents have asked for their files. token: secret of its members. required: outputs without which it has"
    " failed. problem: why files were not fetched or stored.",
)

job_dependencies = Table(
    "job_dependencies",
    metadata,
    Column("job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("on_job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("condition", Text, primary_key=True),
    Column("verdict", Text, nullable=False),
    Index("ix_job_dependencies_on_job_id", "on_job_id"),
    comment="Conditions of jobs on others. verdict: waiting, met or never; never: unless the other job is tried again.",
)

job_waits = Table(
    "job_waits",
    metadata,
    Column("job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("waiting", Integer, nullable=False),
    Column("never", Integer, nullable=False, server_default=text("0")),
    Column("on_failure", Text, nullable=False),
    Column("settled", Boolean, nullable=False, server_default=text("false")),
    Index("ix_job_waits_decided", "job_id", postgresql_where=text("NOT settled AND (waiting = 0 OR never > 0)")),
    comment="Jobs with conditions on others: how many are open, and how many can no longer be met. settled: the scheduler has dealt"
    " with these counts.",
)

label_blocks = Table(
    "label_blocks",
    metadata,
    Column("block", BigInteger, primary_key=True, autoincrement=False),
    Column("common", JSONB()),
    Column("begun", Xid8, nullable=False),
    comment="Blocks of 256 keys of jobs, in which no new job comes any more once all transactions below begun have ended. common: the"
    " labels that all jobs of the block have, each with its values, or null if they are too many; NULL: not known.",
)

job_objects = Table(
    "job_objects",
    metadata,
    Column("job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("queue_id", Integer, nullable=False),
    Column("name", Text),
    Column("spec", JSONB()),
    Column("annotations", JSONB()),
    Column("managed_fields", JSONB()),
    Column("deleted_at", DateTime(timezone=True)),
    Column("freed", Boolean, nullable=False, server_default=text("false")),
    Column(
        "kind",
        Text,
        comment="Kind of the manifest as which it was submitted, such as batch/v1 Job, whose specification spec then is; NULL: a Job"
        " of this system.",
    ),
    Index("ix_job_objects_name", "name", postgresql_where=text("name IS NOT NULL")),
    Index("uq_job_objects_queue_id_name", "queue_id", "name", unique=True, postgresql_where=text("NOT freed")),
    Index("ix_job_objects_kind", "kind", "queue_id", "job_id", postgresql_where=text("kind IS NOT NULL")),
    comment="What Kubernetes has of jobs beside their rows. name: NULL for the id of the job; spec: as it was written, NULL for the"
    " stored specification. With deleted_at, the object is gone once its job has ended. freed: another object may have the name since"
    " then.",
)

schedules = Table(
    "schedules",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("queue_id", Integer, nullable=False),
    Column("name", Text, nullable=False),
    Column("kind", Text),
    Column("spec", JSONB(), nullable=False),
    Column("labels", JSONB()),
    Column("annotations", JSONB()),
    Column("managed_fields", JSONB()),
    Column("api_key_id", Integer, nullable=False),
    Column("generation", Integer, nullable=False, server_default=text("1")),
    Column("suspended", Boolean, nullable=False, server_default=text("false")),
    _now(),
    Column("counts_from", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("next_look", DateTime(timezone=True)),
    Column("blocked_due", DateTime(timezone=True)),
    Column("last_due", DateTime(timezone=True)),
    Column("last_succeeded_at", DateTime(timezone=True)),
    Column("message", Text, nullable=False, server_default=text("''")),
    Column("deleted_at", DateTime(timezone=True)),
    Column("deleted_by", Text),
    _xid(),
    Column("created_xid", Xid8(), nullable=False, server_default=text("pg_current_xact_id()")),
    Index("ix_schedules_next_look", "next_look", postgresql_where=text("next_look IS NOT NULL")),
    Index("uq_schedules_queue_id_name", "queue_id", "name", unique=True, postgresql_where=text("deleted_at IS NULL")),
    Index(None, "name"),
    Index(None, "xid"),
    Index("ix_schedules_deleted", "deleted_at", postgresql_where=text("deleted_at IS NOT NULL")),
    comment="Jobs that are submitted by the clock. kind: of the manifest as which it was written, whose specification spec then is;"
    " NULL: a Schedule of this system. api_key_id: whose jobs they are. counts_from: the latest due time that was dealt with, or"
    " since when due times count. next_look: when a due time may become a job; NULL while suspended. blocked_due: a due time that"
    " waits for the end of earlier jobs. deleted_by: whoever deleted it and its jobs with it, until those are.",
)

scheduled_jobs = Table(
    "scheduled_jobs",
    metadata,
    Column("job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("schedule_id", BigInteger, nullable=False),
    Column("due_at", DateTime(timezone=True)),
    Column("settled", Boolean, nullable=False, server_default=text("false")),
    Index("uq_scheduled_jobs_schedule_id_due_at", "schedule_id", "due_at", unique=True),
    Index("ix_scheduled_jobs_schedule", "schedule_id", "job_id"),
    Index("ix_scheduled_jobs_open", "job_id", postgresql_where=text("NOT settled")),
    comment="Jobs of schedules. due_at: the due time that the job was made for, at most one for each; NULL: somebody asked for it."
    " settled: its end is in the schedule's status.",
)

schedule_events = Table(
    "schedule_events",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("schedule_id", BigInteger, nullable=False),
    Column("at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    _xid(),
    Column("reason", Text, nullable=False),
    Column("is_warning", Boolean, nullable=False, server_default=text("false")),
    Column("message", Text, nullable=False),
    Column("actor", Text, nullable=False, server_default=text("''")),
    Index("ix_schedule_events_schedule", "schedule_id", "id"),
    Index(None, "at"),
    comment="What happened to schedules, for people. Insert-only.",
)

workflows = Table(
    "workflows",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("queue_id", Integer, nullable=False),
    Column("name", Text, nullable=False),
    Column("api_key_id", Integer, nullable=False),
    Column("spec", JSONB(), nullable=False),
    Column("labels", JSONB()),
    Column("state", Text, nullable=False, server_default=text("'running'")),
    Column("wish", Text),
    Column("attempt", Integer, nullable=False, server_default=text("1")),
    _now(),
    Column("ended_at", DateTime(timezone=True)),
    Column("next_look", DateTime(timezone=True)),
    Column("seq", Integer, nullable=False, server_default=text("0")),
    Column("object_name", Text),
    Column("annotations", JSONB()),
    Column("managed_fields", JSONB()),
    Column("deleted_at", DateTime(timezone=True)),
    Column("xid", Xid8(), server_default=text("pg_current_xact_id()")),
    Column("created_xid", Xid8(), server_default=text("pg_current_xact_id()")),
    Index("ix_workflows_queue", "queue_id", "id"),
    Index("ix_workflows_running", "api_key_id", postgresql_where=text("ended_at IS NULL")),
    Index("ix_workflows_next_look", "next_look", postgresql_where=text("next_look IS NOT NULL")),
    Index("ix_workflows_ended_at", "ended_at", postgresql_where=text("ended_at IS NOT NULL")),
    Index(
        "uq_workflows_object_name",
        "object_name",
        "queue_id",
        unique=True,
        postgresql_where=text("object_name IS NOT NULL AND (deleted_at IS NULL OR ended_at IS NULL)"),
    ),
    Index("ix_workflows_xid", "xid", postgresql_where=text("xid IS NOT NULL")),
    comment="Jobs in steps. api_key_id: whose jobs they are. wish: cancel, or cancel_all with its cleanup steps; NULL: it runs on."
    " attempt: one more with each resume. next_look: when a step is tried again whose jobs could not be submitted. seq: number of"
    " its events. object_name: its name in the Kubernetes API, NULL for its id, free once it was deleted there (deleted_at) and has"
    " ended. xid, created_xid: the transactions that wrote it last and first, NULL: before watches.",
)

workflow_events = Table(
    "workflow_events",
    metadata,
    Column("workflow_id", BigInteger, primary_key=True, autoincrement=False),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    _xid(),
    Column("kind", Text, nullable=False),
    Column("step", Text),
    Column("message", Text, nullable=False, server_default=text("''")),
    Column("actor", Text, nullable=False, server_default=text("''")),
    Index(None, "at"),
    comment="What happened to workflows and to their steps. Insert-only.",
)

workflow_steps = Table(
    "workflow_steps",
    metadata,
    Column("workflow_id", BigInteger, primary_key=True, autoincrement=False),
    Column("step", SmallInteger, primary_key=True, autoincrement=False),
    Column("state", Text, nullable=False, server_default=text("'waiting'")),
    Column("message", Text, nullable=False, server_default=text("''")),
    Column("total", Integer),
    Column("items", JSONB()),
    Column("started_at", DateTime(timezone=True)),
    Column("ended_at", DateTime(timezone=True)),
    comment="Steps of workflows, by their place in the specification. total: the number of its jobs in the end, NULL until it is"
    " started; items: their elements, NULL for one job without.",
)

workflow_jobs = Table(
    "workflow_jobs",
    metadata,
    Column("job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("workflow_id", BigInteger, nullable=False),
    Column("step", SmallInteger, nullable=False),
    Column("element", Integer, nullable=False),
    Index("uq_workflow_jobs_workflow_id", "workflow_id", "step", "element", unique=True),
    comment="Jobs of steps, at most one for each element.",
)

workflow_wakes = Table(
    "workflow_wakes",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("workflow_id", BigInteger, nullable=False),
    Index(None, "workflow_id"),
    comment="Workflows of which something has changed that the scheduler has not dealt with. Rows are inserted and deleted, never"
    " updated, so that those who end jobs do not wait for each other.",
)

session_activity = Table(
    "session_activity",
    metadata,
    Column("job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("idle_seconds", Double(), nullable=False),
    Column("life_seconds", Double(), nullable=False),
    Column("began_at", DateTime(timezone=True)),
    Column("active_at", DateTime(timezone=True)),
    Column("warned_at", DateTime(timezone=True)),
    Column("life_warned_at", DateTime(timezone=True)),
    Column("next_look", DateTime(timezone=True), server_default=func.now()),
    Index("ix_session_activity_next_look", "next_look", postgresql_where=text("next_look IS NOT NULL")),
    comment="Jobs that are interactive sessions. began_at: their first start. next_look: when one may have to be warned or ended;"
    " NULL once it has ended.",
)

session_links = Table(
    "session_links",
    metadata,
    Column("hash", LargeBinary, primary_key=True),
    Column("job_id", BigInteger, nullable=False),
    Column("port", Text, nullable=False),
    Column("api_key_id", Integer, nullable=False),
    Column("is_cookie", Boolean, nullable=False),
    Column("expires_at", DateTime(timezone=True), nullable=False),
    Index(None, "expires_at"),
    Index(None, "job_id"),
    comment="Tickets, which are used once, and cookies of browsers, by the hash of their secret. port: its number or name in the"
    " host.",
)

browser_sessions = Table(
    "browser_sessions",
    metadata,
    Column("hash", LargeBinary, primary_key=True),
    Column("person_id", Integer, nullable=False),
    Column("state_hash", LargeBinary, nullable=False),
    Column("began_at", DateTime(timezone=True), nullable=False),
    Column("used_at", DateTime(timezone=True), nullable=False),
    Column("ends_at", DateTime(timezone=True), nullable=False),
    Column("renew_at", DateTime(timezone=True), nullable=False),
    Column("renewing_until", DateTime(timezone=True)),
    Column("refresh_token", LargeBinary),
    Column("id_token", LargeBinary),
    Index("uq_browser_sessions_state_hash", "state_hash", unique=True),
    Index(None, "ends_at"),
    Index(None, "person_id"),
    comment="Sessions of browsers, by the hash of the secret in their cookie. state_hash: of the sign-in that has begun it, which"
    " counts once. renew_at: when the issuer is asked again whether the account counts. refresh_token: sealed with the secret of the"
    " cookie; NULL: the issuer has given none.",
)

pod_groups = Table(
    "pod_groups",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("queue_id", Integer, nullable=False),
    Column("name", Text, nullable=False),
    Column("submitter", Text, nullable=False),
    Column("total", Integer, nullable=False),
    Column("many", Integer, nullable=False, server_default=text("0")),
    Column("job_id", BigInteger),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Index("ix_pod_groups_name", "name", "queue_id"),
    Index("uq_pod_groups_job_id", "job_id", unique=True, postgresql_where=text("job_id IS NOT NULL")),
    comment="Groups of pods that were created one by one. submitter: who created its first pod; many: its pods that have been created;"
    " job_id: the job that they are, once there are total of them.",
)

grouped_pods = Table(
    "grouped_pods",
    metadata,
    Column("group_id", BigInteger, primary_key=True, autoincrement=False),
    Column("queue_id", Integer, nullable=False),
    Column("name", Text, primary_key=True),
    Column("role", Text),
    Column("member", Integer),
    Column("labels", JSONB()),
    Column("annotations", JSONB()),
    Column("spec", JSONB(), nullable=False),
    Column("managed_fields", JSONB()),
    Column("job_spec", JSONB(), nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("deleted_at", DateTime(timezone=True)),
    Index("uq_grouped_pods_name_queue_id", "name", "queue_id", unique=True),
    comment="Pods of groups. spec: as it was written; job_spec: specification of the job that the pod would be by itself; role,"
    " member: of the job of its group. With deleted_at, the pod is gone once that job has ended.",
)

runs = Table(
    "runs",
    metadata,
    Column("job_id", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("cluster_id", Integer, nullable=False),
    Column("state", _enum(RunState, "run_state"), nullable=False),
    Column("generation", Integer, nullable=False, server_default=text("1")),
    Column("seq", Integer, nullable=False, server_default=text("0")),
    Column("known", Boolean, nullable=False, server_default=text("false")),
    Column("stop_cause", _enum(StopCause, "stop_cause")),
    Column("desired_version", BigInteger, nullable=False),
    Column("digest", BigInteger, nullable=False),
    Column("disconnect_seconds", Double),
    Column("sizes", JSONB(), nullable=False),
    Column("holding", JSONB()),
    Column("resized_at", DateTime(timezone=True)),
    Column("assumed", JSONB(), nullable=False),
    Column("placement", JSONB()),
    Column("leased_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("started_at", DateTime(timezone=True)),
    Column("ended_at", DateTime(timezone=True)),
    Column("result", JSONB()),
    Column("decision", JSONB(), nullable=False),
    Column("placed_at", DateTime(timezone=True)),
    Column("counted", Boolean, nullable=False, server_default=text("false")),
    Column("policy_id", Integer),
    Column("bounds", JSONB()),
    Column("cost", Numeric()),
    Column("pools", ARRAY(Text)),
    Column("holder", Integer),
    Column("stop_grace", Double, comment="Seconds that who stopped it left to its members; null: as specified."),
    Column("orders", JSONB(), comment="What it is told to do; null: a release before this column has it in decision."),
    Column("predicted_seconds", Double),
    Column("price_factor", Numeric()),
    Column("results", JSONB(), comment="Results that its first member has left, once it has succeeded or failed."),
    Column("results_error", Text, comment="Why what that member has left cannot be read."),
    PrimaryKeyConstraint("job_id", "attempt"),
    CheckConstraint(
        "(ended_at IS NOT NULL) ="
        " (state IN ('succeeded', 'failed', 'cancelled', 'suspended', 'preempted', 'returned', 'lost'))",
        name="ended",
    ),
    Index("ix_runs_cluster", "cluster_id", "job_id"),
    Index("uq_runs_one_live", "job_id", unique=True, postgresql_where=text(LIVE_RUN)),
    Index("ix_runs_desired", "cluster_id", "desired_version", postgresql_where=text(LIVE_RUN)),
    Index("ix_runs_uncounted", "job_id", "attempt", postgresql_where=text("NOT counted")),
    Index("ix_runs_policy", "policy_id", "leased_at", postgresql_where=text("policy_id IS NOT NULL")),
    comment="holding: the sizes before a shrink, until its agent says that the members have gone. placed_at: since when members have"
    " nodes. counted: whether what it used is in usage. policy_id, bounds, cost: of a run by a burst policy, how long it may"
    " last and at what price, and once it is counted what it cost. pools: that have to grow for it, until it is known what came"
    " of that. holder: number of the records of its cluster's agent that it was leased to.",
)

run_tails = Table(
    "run_tails",
    metadata,
    Column("job_id", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("role", Text, nullable=False),
    Column("index", Integer, nullable=False),
    Column("start", BigInteger, nullable=False),
    Column("data", Text, nullable=False),
    Column("next", BigInteger),
    Column("marks", JSONB(), nullable=False, server_default=text("'[]'")),
    Column("lives", ARRAY(BigInteger), nullable=False, server_default=text("'{}'")),
    PrimaryKeyConstraint("job_id", "attempt", "role", "index"),
)

member_outputs = Table(
    "member_outputs",
    metadata,
    Column("job_id", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("role", Text, nullable=False),
    Column("index", Integer, nullable=False),
    Column("next", BigInteger, nullable=False, server_default=text("0")),
    Column("bytes", BigInteger, nullable=False, server_default=text("0")),
    Column("lives", ARRAY(BigInteger), nullable=False, server_default=text("'{}'")),
    Column("changed_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    PrimaryKeyConstraint("job_id", "attempt", "role", "index"),
    Index(None, "changed_at"),
    comment="Output of members that is stored: its end, its bytes before compression, and where the output of restarts begins.",
)

output_pieces = Table(
    "output_pieces",
    metadata,
    Column("job_id", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("role", Text, nullable=False),
    Column("index", Integer, nullable=False),
    Column("start", BigInteger, nullable=False),
    Column("next", BigInteger, nullable=False),
    Column("lines", Integer, nullable=False),
    Column("marks", JSONB(), nullable=False, server_default=text("'[]'")),
    Column("size", Integer, nullable=False),
    PrimaryKeyConstraint("job_id", "attempt", "role", "index", "start"),
    comment="Pieces of output: offsets, line ends, times as [offset, seconds since the epoch], and bytes as they are stored.",
)

output_data = Table(
    "output_data",
    metadata,
    Column("key", Text, primary_key=True),
    Column("data", LargeBinary, nullable=False),
    comment="The embedded log store: compressed pieces of output.",
)

run_use = Table(
    "run_use",
    metadata,
    Column("job_id", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("sampled_at", DateTime(timezone=True), nullable=False),
    Column("seconds", Integer, nullable=False),
    Column("members", Integer, nullable=False),
    Column("cpu", BigInteger),
    Column("memory", BigInteger),
    Column("gpu", BigInteger),
    Column("gpu_memory", BigInteger),
    Column("requested_cpu", BigInteger),
    Column("requested_memory", BigInteger),
    Column("requested_gpu", BigInteger),
    Column("peak_memory", BigInteger),
    Column("cpu_measured", Double, nullable=False),
    Column("cpu_seconds", Double, nullable=False),
    Column("cpu_requested", Double, nullable=False),
    Column("gpu_measured", Double, nullable=False),
    Column("gpu_seconds", Double, nullable=False),
    Column("gpu_requested", Double, nullable=False),
    Column("peak_cpu", BigInteger),
    Column("restarts", BigInteger),
    Column("oom_kills", BigInteger),
    Column("near_misses", BigInteger),
    Column("gpus_idle_since", DateTime(timezone=True)),
    Column("gpus_warned_at", DateTime(timezone=True)),
    PrimaryKeyConstraint("job_id", "attempt"),
    comment="Use of runs: sums of the last sample, and over the measured seconds. cpu in thousandths of a core,"
    " gpu in thousandths of a GPU at work; requested_...: for the members of which that is known. NULL: unknown.",
)

member_use = Table(
    "member_use",
    metadata,
    Column("job_id", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("places", JSONB(), nullable=False),
    Column("cpu", ARRAY(Integer), nullable=False),
    Column("memory", ARRAY(BigInteger), nullable=False),
    Column("peak_memory", ARRAY(BigInteger), nullable=False),
    Column("gpu", ARRAY(Integer), nullable=False),
    Column("gpu_memory", ARRAY(BigInteger), nullable=False),
    Column("restarts", ARRAY(Integer), nullable=False, server_default=text("'{}'")),
    Column("oom_kills", ARRAY(Integer), nullable=False, server_default=text("'{}'")),
    Column("near_misses", ARRAY(Integer), nullable=False, server_default=text("'{}'")),
    PrimaryKeyConstraint("job_id", "attempt"),
    prefixes=["UNLOGGED"],
    comment="The last sample of each run by member. places: [role, first index, number] in the order of the values; -1: unknown."
    " Unlogged: after a crash of the database it is empty until the next samples.",
)

use_history = Table(
    "use_history",
    metadata,
    Column("job_id", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("step", SmallInteger, nullable=False),
    Column("started_at", DateTime(timezone=True), nullable=False),
    Column("places", JSONB(), nullable=False),
    Column("data", LargeBinary, nullable=False),
    PrimaryKeyConstraint("job_id", "attempt", "step", "started_at"),
    Index(None, "step", "started_at"),
    comment="Samples of what members use, packed by domain/use_history.py. step: 0 for samples as agents sent them, else seconds of"
    " each. places: [role, first index, number] in the order of the values.",
)

cluster_use = Table(
    "cluster_use",
    metadata,
    Column("cluster_id", Integer, ForeignKey("clusters.id", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("reported_at", DateTime(timezone=True), nullable=False),
    Column("missing", Text, nullable=False),
    comment="Last report of use of each agent, and why some of the use is not known.",
)

cool_downs = Table(
    "cool_downs",
    metadata,
    Column("job_id", BigInteger, ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("cluster_id", Integer, ForeignKey("clusters.id", ondelete="CASCADE"), nullable=False),
    Column("until", DateTime(timezone=True), nullable=False),
    Column("reason", Text, nullable=False, server_default=text("''")),
    Column("lacks_room", Boolean, nullable=False, server_default=text("false")),
    PrimaryKeyConstraint("job_id", "cluster_id"),
    Index(None, "until"),
)

events = Table(
    "events",
    metadata,
    Column("at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("xid", Xid8(), server_default=text("pg_current_xact_id()")),
    Column("job_id", BigInteger, nullable=False),
    Column("seq", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("states", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    Column("attempt", Integer),
    Column("cluster_id", Integer),
    Column("actor", Text, nullable=False, server_default=text("''")),
    Column("message", Text, nullable=False, server_default=text("''")),
    Column("details", JSONB()),
    Column("quiet_xid", Xid8()),
    PrimaryKeyConstraint("job_id", "seq", "at"),
    Index("ix_events_feed", "xid", postgresql_where=text("xid IS NOT NULL")),
    Index("ix_events_quiet", "quiet_xid", postgresql_where=text("quiet_xid IS NOT NULL")),
    postgresql_partition_by="RANGE (at)",
)

outbox = Table(
    "outbox",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("job_id", BigInteger),
    Column("seq", Integer, nullable=False),
    Column("hook", SmallInteger, nullable=False),
    Column("body", JSONB(), nullable=False),
    _now(),
    Column("attempts", SmallInteger, nullable=False, server_default=text("0")),
    Column("next_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("dead_at", DateTime(timezone=True)),
    Column("error", Text, nullable=False, server_default=text("''")),
    Column(
        "group_id",
        BigInteger,
        comment="The group of which a message is that is about no job; NULL: job_id has the job.",
    ),
    Column("url", Text, comment="Address of a message; NULL: the specification of the job or workflow has it."),
    Column(
        "api_key_id",
        Integer,
        comment="Whose preferences a message is of that is in no specification; NULL: it is in one.",
    ),
    Index("ix_outbox_due", "next_at", postgresql_where=text("dead_at IS NULL")),
    Index("ix_outbox_order", "job_id", "hook", "id", postgresql_where=text("dead_at IS NULL")),
    Index("ix_outbox_dead", "id", postgresql_where=text("dead_at IS NOT NULL")),
    Index("ix_outbox_dead_job", "job_id", postgresql_where=text("dead_at IS NOT NULL")),
    Index(None, "group_id", postgresql_where=text("group_id IS NOT NULL")),
    comment="Webhook messages, written with their cause; deleted when delivered, kept with dead_at when given up. job_id: below zero"
    " the key of a workflow, with its sign changed.",
)

notice_preferences = Table(
    "notice_preferences",
    metadata,
    Column("api_key_id", Integer, ForeignKey("api_keys.id", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("spec", JSONB(), nullable=False),
    Column("least_seconds", Double, nullable=False),
    Column("window_ends_at", DateTime(timezone=True)),
    Column("reported", Integer, nullable=False, server_default=text("0")),
    comment="What users want to be notified of. least_seconds: minDuration of spec. window_ends_at: until when further events are"
    " gathered; NULL: they are not. reported: events that were reported one by one in this window.",
)

notice_events = Table(
    "notice_events",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("api_key_id", Integer, nullable=False),
    Column("body", JSONB(), nullable=False),
    _now(),
    Index("ix_notice_events_api_key_id", "api_key_id", "id"),
    comment="Events that users want to be notified of, written with their cause; deleted when their message is in the outbox.",
)

class_reasons = Table(
    "class_reasons",
    metadata,
    Column("queue_id", Integer, ForeignKey("queues.id", ondelete="CASCADE"), nullable=False),
    Column("class_id", SmallInteger, ForeignKey("priority_classes.id", ondelete="CASCADE"), nullable=False),
    Column("shape_id", Integer, nullable=False),
    Column("avoided", ARRAY(Integer), nullable=False, server_default=text("'{}'")),
    Column("reason", JSONB(), nullable=False),
    Column("cycle", BigInteger, nullable=False),
    Column("at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    PrimaryKeyConstraint("queue_id", "class_id", "shape_id", "avoided"),
)

user_reasons = Table(
    "user_reasons",
    metadata,
    Column("queue_id", Integer, ForeignKey("queues.id", ondelete="CASCADE"), nullable=False),
    Column("class_id", SmallInteger, ForeignKey("priority_classes.id", ondelete="CASCADE"), nullable=False),
    Column("shape_id", Integer, nullable=False),
    Column("avoided", ARRAY(Integer), nullable=False, server_default=text("'{}'")),
    Column("submitter", Text, nullable=False),
    Column("reason", JSONB(), nullable=False),
    Column("cycle", BigInteger, nullable=False),
    Column("at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    PrimaryKeyConstraint("queue_id", "class_id", "shape_id", "avoided", "submitter"),
)

log_streams = Table(
    "log_streams",
    metadata,
    Column("id", Text, primary_key=True),
    Column("cluster_id", Integer, ForeignKey("clusters.id", ondelete="CASCADE"), nullable=False),
    Column("job_id", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("options", JSONB(), nullable=False),
    Column("desired_version", BigInteger, nullable=False),
    Column("expires_at", DateTime(timezone=True), nullable=False),
    Index(None, "cluster_id", "desired_version"),
    Index(None, "expires_at"),
)

member_streams = Table(
    "member_streams",
    metadata,
    Column("id", Text, primary_key=True),
    Column("cluster_id", Integer, ForeignKey("clusters.id", ondelete="CASCADE"), nullable=False),
    Column("job_id", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("role", Text, nullable=False),
    Column("member_index", Integer, nullable=False),
    Column("options", JSONB(), nullable=False),
    Column("api", JSONB(), nullable=False),
    Column("desired_version", BigInteger, nullable=False),
    Column("expires_at", DateTime(timezone=True), nullable=False),
    Index(None, "cluster_id", "desired_version"),
    Index(None, "expires_at"),
)

schema_compatibility = Table(
    "schema_compatibility",
    metadata,
    Column("one", Boolean, CheckConstraint("one", name="one"), primary_key=True, server_default=text("true")),
    Column("oldest_release", Text, nullable=False),
    comment="One row. oldest_release: the newest revision that the oldest release knows which may run on this schema.",
)

series = Table(
    "series",
    metadata,
    Column("id", Integer, Identity(always=True), primary_key=True),
    Column("metric", Text, nullable=False),
    Column("cluster", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("product", Text, nullable=False),
    Column("policy", Text, nullable=False),
    Column("seen_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    UniqueConstraint("metric", "cluster", "queue", "product", "policy", name="uq_series_labels"),
    comment="Time series by metric and labels, by name: those of an object that was removed stay. seen_at: when a scheduler last"
    " looked up the id.",
)

series_samples = Table(
    "series_samples",
    metadata,
    Column("at", DateTime(timezone=True), primary_key=True),
    Column("ids", LargeBinary(), nullable=False),
    Column("vals", LargeBinary(), nullable=False),
    comment="Values of all series in a minute, until they are rolled up: 32-bit ids and floats, little-endian, in the same order.",
)

series_values = Table(
    "series_values",
    metadata,
    Column("series_id", Integer, nullable=False, autoincrement=False),
    Column("grain", SmallInteger, nullable=False, autoincrement=False),
    Column("begin", DateTime(timezone=True), nullable=False),
    Column("vals", LargeBinary(), nullable=False),
    PrimaryKeyConstraint("series_id", "grain", "begin"),
    Index("ix_series_values_grain", "grain", "begin"),
    comment="Values of a series, one each grain seconds: of an hour for grain 60, of a day for 600 and 3600. vals: 32-bit floats,"
    " little-endian; a single one where all are the same; NaN is unknown.",
)

simulations = Table(
    "simulations",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("title", Text, nullable=False, server_default=text("''")),
    Column("spec", JSONB(), nullable=False),
    Column("state", Text, nullable=False, server_default=text("'queued'")),
    _now(),
    Column("created_by", Text, nullable=False, server_default=text("''")),
    Column("started_at", DateTime(timezone=True)),
    Column("ended_at", DateTime(timezone=True)),
    Column("attempts", SmallInteger, nullable=False, server_default=text("0")),
    Column("claimed_until", DateTime(timezone=True)),
    Column("progress", JSONB(), nullable=False, server_default=text("'{}'")),
    Column("message", Text, nullable=False, server_default=text("''")),
    Column("result", JSONB()),
    Column("report", Text),
    Index("ix_simulations_open", "id", postgresql_where=text("state IN ('queued', 'running')")),
    comment="A worker that runs one holds a claim of some seconds, which it renews; attempts: how often one was claimed.",
)

__all__ = ["metadata", "LIVE_RUN", "WAITING_JOB"]
