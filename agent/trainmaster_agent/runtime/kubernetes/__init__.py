"""The Kubernetes runtime: members are pods, placed by the scheduler that the cluster has.

All that must survive is in the API server: an anchor ConfigMap per run says what was asked for and what was decided, pods say what
became of it. Memory holds a copy, brought up to date by watches.

    start, stop, resize ──▶ anchor ──▶ assess (pure) ──▶ creates and deletes ──▶ API server
                                          ▲                                          │
                                          └──────────── watches: pods, objects ◀─────┘
"""
