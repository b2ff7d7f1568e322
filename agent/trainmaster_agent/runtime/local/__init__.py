"""The local runtime: every member is a real operating-system process of this machine.

    agent ──socketpair──▶ fork server ──fork──▶ supervisor (one per run) ──fork + exec──▶ members
      ▲                                       │
      └── poke (FIFO) ── status.json ◀────────┘

The agent decides what fits and writes a plan; a supervisor, which outlives agent and fork server, starts the members together,
watches over them and ends them in time. Both sides communicate through files, so either may be killed at any point. This
module imports nothing: the fork server must stay small and quick to fork.
"""
