"""The Kubernetes runtime: members are pods, placed by the cluster's own scheduler.

All durable state is in the API server: a ConfigMap per run, its record, holds the orders and decisions, the pods show what
came of them. Memory holds a copy, which watches keep up to date.

    start, stop, resize ──▶ record ──▶ reconcile (pure) ──▶ creates and deletes ──▶ API server
                                          ▲                                             │
                                          └──────────── watches: pods, objects ◀────────┘
"""
