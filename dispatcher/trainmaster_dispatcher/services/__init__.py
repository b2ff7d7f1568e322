"""Use cases: submit and steer jobs, sync an agent, apply a plan. One transaction each, without network calls inside it."""
