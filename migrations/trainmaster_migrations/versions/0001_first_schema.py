"""The first schema.

Rules: see script.py.mako. This is the only migration that may create everything at once.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql
from sqlalchemy.types import UserDefinedType

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


class Xid8(UserDefinedType[str]):
    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        return "xid8"


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("api_key_id", sa.Integer(), nullable=True),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("details", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_table(
        "changes",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("xid", Xid8(), server_default=sa.text("pg_current_xact_id()"), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("ref", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_changes")),
        comment="The feed of everything the scheduler reads beside jobs: queues, classes, clusters, capacity.",
    )
    op.create_index(op.f("ix_changes_xid_id"), "changes", ["xid", "id"], unique=False)
    op.create_table(
        "clusters",
        sa.Column("id", sa.Integer(), sa.Identity(always=False), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Enum("private", "public", "edge", name="cluster_kind"), nullable=False),
        sa.Column("spec", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("cordoned", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_clusters")),
        sa.UniqueConstraint("name", name=op.f("uq_clusters_name")),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("xid", Xid8(), server_default=sa.text("pg_current_xact_id()"), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("states", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("cluster_id", sa.Integer(), nullable=True),
        sa.Column("actor", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("message", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("details", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.PrimaryKeyConstraint("at", "id", name=op.f("pk_events")),
        postgresql_partition_by="RANGE (at)",
    )
    op.create_index("ix_events_feed", "events", ["xid", "id"], unique=False)
    op.create_index("ix_events_job", "events", ["job_id", "seq"], unique=False)
    op.create_table(
        "idempotency_keys",
        sa.Column("api_key_id", sa.Integer(), nullable=False),
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("body_hash", sa.LargeBinary(), nullable=False),
        sa.Column("status", sa.SmallInteger(), nullable=False),
        sa.Column("answer", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("api_key_id", "route", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_index(op.f("ix_idempotency_keys_created_at"), "idempotency_keys", ["created_at"], unique=False)
    op.create_table(
        "installation",
        sa.Column("one", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("id", sa.Uuid(), server_default=sa.text("gen_random_uuid()"), nullable=False),
        sa.Column("store_epoch", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("up_since", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("one", name=op.f("ck_installation_one")),
        sa.PrimaryKeyConstraint("one", name=op.f("pk_installation")),
    )
    op.create_table(
        "job_specs",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("spec", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job_specs")),
    )
    op.create_table(
        "leadership",
        sa.Column("one", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("token", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("holder", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), server_default=sa.text("'epoch'"), nullable=False),
        sa.CheckConstraint("one", name=op.f("ck_leadership_one")),
        sa.PrimaryKeyConstraint("one", name=op.f("pk_leadership")),
    )
    op.create_table(
        "priority_classes",
        sa.Column("id", sa.SmallInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Integer(), nullable=False),
        sa.Column("is_default", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("spec", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_priority_classes")),
        sa.UniqueConstraint("name", name=op.f("uq_priority_classes_name")),
    )
    op.create_table(
        "queues",
        sa.Column("id", sa.Integer(), sa.Identity(always=False), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("parent_id", sa.Integer(), nullable=True),
        sa.Column("spec", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["parent_id"], ["queues.id"], name=op.f("fk_queues_parent_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_queues")),
        sa.UniqueConstraint("path", name=op.f("uq_queues_path")),
    )
    op.create_index(op.f("ix_queues_parent_id"), "queues", ["parent_id"], unique=False)
    op.create_table(
        "run_tails",
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "attempt", "role", "index", name=op.f("pk_run_tails")),
    )
    op.create_table(
        "shapes",
        sa.Column("id", sa.Integer(), sa.Identity(always=False), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("body", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_shapes")),
        sa.UniqueConstraint("hash", name=op.f("uq_shapes_hash")),
    )
    op.create_table(
        "agent_sessions",
        sa.Column("session", sa.Text(), nullable=False),
        sa.Column("cluster_id", sa.Integer(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["cluster_id"], ["clusters.id"], name=op.f("fk_agent_sessions_cluster_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("session", name=op.f("pk_agent_sessions")),
    )
    op.create_index(op.f("ix_agent_sessions_cluster_id"), "agent_sessions", ["cluster_id"], unique=False)
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Integer(), sa.Identity(always=False), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("hint", sa.Text(), nullable=False),
        sa.Column("role", sa.Enum("admin", "user", "agent", name="key_role"), nullable=False),
        sa.Column("queues", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("cluster_id", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("(role = 'agent') = (cluster_id IS NOT NULL)", name=op.f("ck_api_keys_agent_has_cluster")),
        sa.ForeignKeyConstraint(
            ["cluster_id"], ["clusters.id"], name=op.f("fk_api_keys_cluster_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("hash", name=op.f("uq_api_keys_hash")),
    )
    op.create_index(op.f("ix_api_keys_cluster_id"), "api_keys", ["cluster_id"], unique=False)
    op.create_table(
        "capacity",
        sa.Column("cluster_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("report", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["cluster_id"], ["clusters.id"], name=op.f("fk_capacity_cluster_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("cluster_id", name=op.f("pk_capacity")),
    )
    op.create_table(
        "class_reasons",
        sa.Column("queue_id", sa.Integer(), nullable=False),
        sa.Column("class_id", sa.SmallInteger(), nullable=False),
        sa.Column("shape_id", sa.Integer(), nullable=False),
        sa.Column("avoided", postgresql.ARRAY(sa.Integer()), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("reason", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("cycle", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["class_id"], ["priority_classes.id"], name=op.f("fk_class_reasons_class_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["queue_id"], ["queues.id"], name=op.f("fk_class_reasons_queue_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("queue_id", "class_id", "shape_id", "avoided", name=op.f("pk_class_reasons")),
    )
    op.create_table(
        "cluster_contacts",
        sa.Column("cluster_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("session", sa.Text(), nullable=True),
        sa.Column("holder", sa.Text(), nullable=True),
        sa.Column("number", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("lease_until", sa.DateTime(timezone=True), server_default=sa.text("'epoch'"), nullable=False),
        sa.Column("contact_at", sa.DateTime(timezone=True), server_default=sa.text("'epoch'"), nullable=False),
        sa.Column("earlier_contact_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("agent_version", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.ForeignKeyConstraint(
            ["cluster_id"], ["clusters.id"], name=op.f("fk_cluster_contacts_cluster_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("cluster_id", name=op.f("pk_cluster_contacts")),
        comment="Rewritten at each sync, hence apart from clusters. earlier_contact_at: last contact of the holder before this one.",
    )
    op.create_table(
        "cluster_desired",
        sa.Column("cluster_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("version", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.ForeignKeyConstraint(
            ["cluster_id"], ["clusters.id"], name=op.f("fk_cluster_desired_cluster_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("cluster_id", name=op.f("pk_cluster_desired")),
        comment="The row's lock makes the order of versions the order of commits.",
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("version", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("queue_id", sa.Integer(), nullable=False),
        sa.Column("class_id", sa.SmallInteger(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("shape_id", sa.Integer(), nullable=False),
        sa.Column("spec_id", sa.BigInteger(), nullable=False),
        sa.Column("api_key_id", sa.Integer(), nullable=False),
        sa.Column("submitted_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column(
            "state",
            sa.Enum("held", "queued", "dispatched", "running", "succeeded", "failed", "cancelled", name="job_state"),
            nullable=False,
        ),
        sa.Column(
            "hold_cause",
            sa.Enum(
                "dependency", "startTime", "user", "suspended", "backOff", "unplaceable", "queueHeld", name="hold_cause"
            ),
            nullable=True,
        ),
        sa.Column("hold_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("wish", sa.Enum("cancelling", "suspending", name="wish"), nullable=True),
        sa.Column("attempt", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("retries_used", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("losses", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("returns", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("message", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("labels", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.ForeignKeyConstraint(["class_id"], ["priority_classes.id"], name=op.f("fk_jobs_class_id")),
        sa.ForeignKeyConstraint(["queue_id"], ["queues.id"], name=op.f("fk_jobs_queue_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index(
        "ix_jobs_live",
        "jobs",
        ["id"],
        unique=False,
        postgresql_where=sa.text("state NOT IN ('succeeded', 'failed', 'cancelled')"),
    )
    op.create_index("ix_jobs_queue", "jobs", ["queue_id", "id"], unique=False)
    op.create_index(
        "ix_jobs_release",
        "jobs",
        ["hold_until"],
        unique=False,
        postgresql_where=sa.text("state = 'held' AND hold_until IS NOT NULL"),
    )
    op.create_index(
        "ix_jobs_waiting", "jobs", ["queue_id"], unique=False, postgresql_where=sa.text("state IN ('held', 'queued')")
    )
    op.create_table(
        "log_streams",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("cluster_id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("options", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("desired_version", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["cluster_id"], ["clusters.id"], name=op.f("fk_log_streams_cluster_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_log_streams")),
    )
    op.create_index(
        op.f("ix_log_streams_cluster_id_desired_version"),
        "log_streams",
        ["cluster_id", "desired_version"],
        unique=False,
    )
    op.create_index(op.f("ix_log_streams_expires_at"), "log_streams", ["expires_at"], unique=False)
    op.create_table(
        "cool_downs",
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("cluster_id", sa.Integer(), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("reason", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.ForeignKeyConstraint(
            ["cluster_id"], ["clusters.id"], name=op.f("fk_cool_downs_cluster_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_cool_downs_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "cluster_id", name=op.f("pk_cool_downs")),
    )
    op.create_index(op.f("ix_cool_downs_until"), "cool_downs", ["until"], unique=False)
    op.create_table(
        "runs",
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("cluster_id", sa.Integer(), nullable=False),
        sa.Column(
            "state",
            sa.Enum(
                "leased",
                "accepted",
                "pending",
                "running",
                "stopping",
                "succeeded",
                "failed",
                "cancelled",
                "suspended",
                "preempted",
                "returned",
                "lost",
                name="run_state",
            ),
            nullable=False,
        ),
        sa.Column("generation", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("seq", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("known", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("stop_cause", sa.Enum("cancel", "suspend", "preempt", "unknown", name="stop_cause"), nullable=True),
        sa.Column("desired_version", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.BigInteger(), nullable=False),
        sa.Column("disconnect_seconds", sa.Double(), nullable=True),
        sa.Column("sizes", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("assumed", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("placement", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("leased_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("result", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("decision", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters.id"], name=op.f("fk_runs_cluster_id")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_runs_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "attempt", name=op.f("pk_runs")),
    )
    op.create_index(
        "ix_runs_desired",
        "runs",
        ["cluster_id", "desired_version"],
        unique=False,
        postgresql_where=sa.text("state IN ('leased', 'accepted', 'pending', 'running', 'stopping')"),
    )
    op.create_index(
        "uq_runs_one_live",
        "runs",
        ["job_id"],
        unique=True,
        postgresql_where=sa.text("state IN ('leased', 'accepted', 'pending', 'running', 'stopping')"),
    )

    op.execute("CREATE TABLE events_default PARTITION OF events DEFAULT")
    # Rows that change with each run are rewritten in place where the page has room (heap-only tuples).
    for table in ("jobs", "runs"):
        op.execute(f"ALTER TABLE {table} SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02)")
    for table in ("cluster_contacts", "cluster_desired", "leadership", "installation"):
        op.execute(f"ALTER TABLE {table} SET (fillfactor = 20, autovacuum_vacuum_threshold = 200)")
    op.execute("INSERT INTO installation DEFAULT VALUES")
    op.execute("INSERT INTO leadership DEFAULT VALUES")
    op.execute(
        """
        INSERT INTO priority_classes (name, value, is_default, spec) VALUES
          ('low', -100, false, '{"name": "low", "value": -100}'),
          ('normal', 0, true, '{"name": "normal", "value": 0, "default": true}'),
          ('high', 100, false, '{"name": "high", "value": 100}')
        """
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
