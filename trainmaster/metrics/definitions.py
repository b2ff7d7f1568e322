"""Every metric of the system. ``docs/reference/metrics.md`` explains each for users; a test compares the two.

No label may name a job, a run, a session, a key or a raw path: the number of series depends only on queues, classes, clusters and
routes. Count batches by ``inc(n)`` and keep the child of ``labels(...)`` where a loop would look it up again.
"""

from trainmaster.metrics.kinds import Process, Registry

_API, _SCHEDULER, _WORKER, _BEAT, _AGENT = (
    Process.API,
    Process.SCHEDULER,
    Process.WORKER,
    Process.BEAT,
    Process.AGENT,
)
_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_WAITS = (0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 43200.0, 86400.0, 259200.0)

BOOK = Registry()

build_info = BOOK.gauge(
    "build_info",
    "Always 1; says which version of which process this is.",
    *Process,
    labels=("process", "version"),
)

# -- unexpected errors

contained_errors = BOOK.counter(
    "contained_errors",
    "Unexpected errors that ended the work on one object and nothing else.",
    _API,
    _SCHEDULER,
    _WORKER,
    _BEAT,
    labels=("part",),
)
quarantined_objects = BOOK.picture(
    "quarantined_objects",
    "Objects that the leader's cycles leave out after an unexpected error, until they change or are tried again.",
    _SCHEDULER,
    labels=("part",),
)

# -- traces

dropped_spans = BOOK.counter(
    "dropped_spans",
    "Spans that were not exported, by reason: the queue was full, or making or sending them failed.",
    _API,
    _SCHEDULER,
    _AGENT,
    labels=("reason",),
)
for _reason in ("full", "failed"):
    dropped_spans.labels(_reason)

# -- stores, as each process finds them

postgres_away = BOOK.gauge("postgres_away", "1 while this process cannot reach Postgres.", _API, _SCHEDULER)
redis_away = BOOK.gauge("redis_away", "1 while this process cannot reach its configured Redis.", _API, _SCHEDULER)
redis_listener_restarts = BOOK.counter(
    "redis_listener_restarts", "Times that this process had to subscribe to Redis again.", _API, _SCHEDULER
)
redis_messages_dropped = BOOK.counter(
    "redis_messages_dropped", "Wake-ups and log chunks dropped, by reason.", _API, _SCHEDULER, labels=("reason",)
)
for _reason in ("away", "full", "follower", "garbage"):
    redis_messages_dropped.labels(_reason)
store_connections_in_use = BOOK.gauge(
    "store_connections_in_use", "Connections to Postgres that transactions hold now.", _API, _SCHEDULER
)
store_connections_limit = BOOK.gauge(
    "store_connections_limit", "Connections to Postgres that this process may open.", _API, _SCHEDULER
)
store_failures = BOOK.counter(
    "store_failures", "Transactions given up because Postgres did not answer.", _API, _SCHEDULER
)

# -- the api

http_requests = BOOK.counter(
    "http_requests", "Requests answered, by route template.", _API, labels=("method", "route", "status")
)
http_request_seconds = BOOK.histogram(
    "http_request_seconds",
    "Time from a request's head to the end of its answer.",
    _API,
    labels=("method", "route"),
    buckets=_SHORT,
)
http_bodies_refused = BOOK.counter("http_bodies_refused", "Requests refused because their body was too large.", _API)
parsers_killed = BOOK.counter(
    "parsers_killed", "Large submissions given up because checking them took too much time or memory.", _API
)
http_connections = BOOK.gauge("http_connections", "Connections that are open, as counted each second.", _API)
http_connections_ended = BOOK.counter(
    "http_connections_ended", "Connections ended because they exceeded a bound, by reason.", _API, labels=("reason",)
)
for _reason in ("silent", "header", "header-bytes", "body", "unread-answer", "too-many", "evicted"):
    http_connections_ended.labels(_reason)
member_streams = BOOK.gauge(
    "member_streams", "Streams to members that users have open, by kind.", _API, labels=("kind",)
)
for _kind in ("exec", "attach", "portForward"):
    member_streams.labels(_kind)
calls_refused = BOOK.counter(
    "calls_refused",
    "Calls refused with 429 because a key or an address asked for too much, by limit.",
    _API,
    labels=("limit",),
)
for _limit in ("rate", "at-once", "events", "logs", "members", "wrong-keys", "keyless"):
    calls_refused.labels(_limit)
reports = BOOK.counter("reports", "Agents' reports of runs, by verdict.", _API, labels=("verdict",))
for _verdict in ("applied", "duplicate", "stale", "illegal", "unknown"):
    reports.labels(_verdict)  # at 0 from the start: Prometheus cannot see an increase to a first value
agent_sessions = BOOK.counter(
    "agent_sessions", "Sessions that agents began; each replaces the one before.", _API, labels=("cluster",)
)
agent_superseded = BOOK.counter(
    "agent_superseded", "Syncs refused because a newer session has taken over.", _API, labels=("cluster",)
)
agent_parts_refused = BOOK.counter(
    "agent_parts_refused",
    "Reports of agents that could not be read, whole or in part: of runs, or of capacity, which closes the cluster to new runs.",
    _API,
    labels=("cluster", "part"),
)
runs_ended = BOOK.counter(
    "runs_ended",
    "Runs that ended, by how; category is empty unless they failed.",
    _API,
    _SCHEDULER,
    labels=("cluster", "end", "category"),
)

# -- the scheduler

leader = BOOK.gauge("leader", "1 while this scheduler believes that it leads.", _SCHEDULER)
cycle_seconds = BOOK.histogram(
    "cycle_seconds", "Time of a leader's cycle: decide and apply.", _SCHEDULER, buckets=_SHORT
)
absorb_seconds = BOOK.histogram(
    "absorb_seconds", "Time to take in what has changed in the store.", _SCHEDULER, buckets=_SHORT
)
decide_seconds = BOOK.histogram("decide_seconds", "Time to decide on a plan.", _SCHEDULER, buckets=_SHORT)
apply_seconds = BOOK.histogram("apply_seconds", "Time to store a plan.", _SCHEDULER, buckets=_SHORT)
decisions = BOOK.counter(
    "decisions",
    "Decisions on single jobs: applied, or dropped because the job had changed.",
    _SCHEDULER,
    labels=("outcome",),
)
starts = BOOK.counter("starts", "Runs sent to clusters.", _SCHEDULER, labels=("cluster",))
wait_seconds = BOOK.histogram(
    "wait_seconds",
    "Time from a job's submission to its first dispatch.",
    _SCHEDULER,
    labels=("priority_class",),
    buckets=_WAITS,
)
wait_forecasts = BOOK.counter(
    "wait_forecasts",
    "Jobs for which it was computed by when they would start, by when they did: by the time of half of such jobs, of nine tenths, or"
    " later.",
    _SCHEDULER,
    labels=("queue", "outcome"),
)
idle_gpu_jobs = BOOK.counter(
    "idle_gpu_jobs",
    "Jobs that were warned as their GPUs do nothing, and jobs that were suspended for it.",
    _SCHEDULER,
    labels=("queue", "outcome"),
)
deadlines = BOOK.counter(
    "deadlines",
    "Jobs whose deadline was found to be at risk, and jobs that have not ended by it.",
    _SCHEDULER,
    labels=("queue", "outcome"),
)
wakeups = BOOK.counter(
    "wakeups",
    "Ends of the scheduler's waits: after a wake-up, or after a second without one.",
    _SCHEDULER,
    labels=("by",),
)
feed_lag_seconds = BOOK.picture(
    "feed_lag_seconds", "Age of the oldest change that this scheduler has not read yet.", _SCHEDULER
)
feed_rows_unsettled = BOOK.picture(
    "feed_rows_unsettled", "Changes that this scheduler has not read yet; counted up to 100,000.", _SCHEDULER
)

# -- the store's content, measured by the leader alone

jobs = BOOK.picture("jobs", "Jobs that have not ended.", _SCHEDULER, labels=("queue", "state"))
waiting_jobs = BOOK.picture(
    "waiting_jobs", "Queued jobs by the token of the reason why they wait.", _SCHEDULER, labels=("token",)
)
oldest_queued_seconds = BOOK.picture(
    "oldest_queued_seconds",
    "Time since the submission of the oldest queued job that was never dispatched.",
    _SCHEDULER,
    labels=("priority_class",),
)
wait_target_seconds = BOOK.picture(
    "wait_target_seconds", "The longestWait of a priority class.", _SCHEDULER, labels=("priority_class",)
)
burst_budget_used_ratio = BOOK.picture(
    "burst_budget_used_ratio",
    "The part of a burst policy's budget that runs have spent in its current hour, day or month.",
    _SCHEDULER,
    labels=("policy", "span"),
)
cluster_contact_age_seconds = BOOK.picture(
    "cluster_contact_age_seconds", "Time since an agent's last sync was stored.", _SCHEDULER, labels=("cluster",)
)
cluster_lease_left_seconds = BOOK.picture(
    "cluster_lease_left_seconds",
    "Time left of a cluster's session lease; negative once it has run out.",
    _SCHEDULER,
    labels=("cluster",),
)
_AMOUNT = ("cluster", "resource", "product")
_OF_QUEUE = ("queue", "resource", "product")
cluster_capacity = BOOK.picture(
    "cluster_capacity",
    "Cores, bytes of memory and devices that jobs can have, in use or free.",
    _SCHEDULER,
    labels=_AMOUNT,
)
cluster_used = BOOK.picture(
    "cluster_used", "Cores, bytes of memory and devices that live runs hold.", _SCHEDULER, labels=_AMOUNT
)
cluster_free = BOOK.picture(
    "cluster_free", "Cores, bytes of memory and devices that are free.", _SCHEDULER, labels=_AMOUNT
)
cluster_others = BOOK.picture(
    "cluster_others", "Cores, bytes of memory and devices that pods of others use.", _SCHEDULER, labels=_AMOUNT
)
queue_used = BOOK.picture(
    "queue_used",
    "Cores, bytes and devices that live runs of a queue and those below it hold.",
    _SCHEDULER,
    labels=_OF_QUEUE,
)
queue_guaranteed = BOOK.picture(
    "queue_guaranteed", "Cores, bytes of memory and devices that a queue is guaranteed.", _SCHEDULER, labels=_OF_QUEUE
)
queue_borrowed = BOOK.picture(
    "queue_borrowed",
    "Cores, bytes and devices that a queue has in use beyond its guarantee.",
    _SCHEDULER,
    labels=_OF_QUEUE,
)
cluster_nodes = BOOK.picture(
    "cluster_nodes",
    "Nodes of a cluster by state and trouble, as its agent reports them.",
    _SCHEDULER,
    labels=("cluster", "state"),
)
series_dropped = BOOK.picture(
    "series_dropped", "Series that the last sample of the history left out, because there are too many.", _SCHEDULER
)
used_cores = BOOK.picture(
    "used_cores", "Cores that members of running jobs use.", _SCHEDULER, labels=("cluster", "queue")
)
requested_cores = BOOK.picture(
    "requested_cores",
    "Cores that were requested for the members of which trainmaster_used_cores is known.",
    _SCHEDULER,
    labels=("cluster", "queue"),
)
used_memory_bytes = BOOK.picture(
    "used_memory_bytes", "Memory that members of running jobs use.", _SCHEDULER, labels=("cluster", "queue")
)
requested_memory_bytes = BOOK.picture(
    "requested_memory_bytes",
    "Memory that was requested for the members of which trainmaster_used_memory_bytes is known.",
    _SCHEDULER,
    labels=("cluster", "queue"),
)
used_gpus = BOOK.picture(
    "used_gpus",
    "Busy GPUs of members of running jobs; one that is busy half of the time is half a GPU.",
    _SCHEDULER,
    labels=("cluster", "queue"),
)
requested_gpus = BOOK.picture(
    "requested_gpus",
    "GPUs of the members of which trainmaster_used_gpus is known.",
    _SCHEDULER,
    labels=("cluster", "queue"),
)
idle_gpus = BOOK.picture(
    "idle_gpus",
    "GPUs of running jobs whose GPUs were busy for less than 5 % of the time, on average over them, in the last sample.",
    _SCHEDULER,
    labels=("cluster", "queue"),
)
lease_seconds = BOOK.picture("lease_seconds", "L: how long a session lease is granted.", _SCHEDULER)
outbox_rows = BOOK.picture(
    "outbox_rows", "Webhook messages: waiting, or dead after all attempts.", _SCHEDULER, labels=("state",)
)
outbox_oldest_seconds = BOOK.picture(
    "outbox_oldest_seconds", "Age of the oldest webhook message that waits; 0 without one.", _SCHEDULER
)
log_streams = BOOK.picture("log_streams", "Log streams that somebody follows.", _SCHEDULER)
measuring_seconds = BOOK.picture("measuring_seconds", "Time that the last measurement of the store took.", _SCHEDULER)

# -- side jobs

tasks = BOOK.counter("tasks", "Side jobs done, by how they ended.", _WORKER, labels=("task", "outcome"))
task_seconds = BOOK.histogram("task_seconds", "Time of a side job.", _WORKER, labels=("task",), buckets=_SHORT)

# -- the agent

agent_lease_margin_seconds = BOOK.gauge(
    "agent_lease_margin_seconds",
    "Time the session lease still had when its renewal was answered; negative: it had run out.",
    _AGENT,
)
agent_lease_seconds = BOOK.gauge("agent_lease_seconds", "How long the session lease was last granted for.", _AGENT)
agent_sync_seconds = BOOK.histogram(
    "agent_sync_seconds", "Time from sending a sync to its answer.", _AGENT, buckets=_SHORT
)
agent_contained_errors = BOOK.counter(
    "agent_contained_errors",
    "Unexpected errors while one run, object or message was handled; the others were not affected.",
    _AGENT,
    labels=("place",),
)
for _place in ("accept", "capacity", "fail", "look", "record", "report", "run", "start", "stop", "worker"):
    agent_contained_errors.labels(_place)
