"""Use cases: submit and control jobs, sync an agent, apply a plan. One transaction each, without network calls inside it."""
