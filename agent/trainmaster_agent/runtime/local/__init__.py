"""The local runtime: every member is a real operating-system process of this machine.

    agent ──socketpair──▶ zygote ──fork──▶ keeper (one per run) ──fork + exec──▶ members
      ▲                                       │
      └── poke (FIFO) ── status.json ◀────────┘

The agent decides what fits and writes a plan; a keeper, which outlives agent and zygote, starts the members together,
watches over them and ends them in time. Both sides speak through files, so either may be killed at any point. This
module imports nothing: the zygote must stay small and quick to fork.
"""
