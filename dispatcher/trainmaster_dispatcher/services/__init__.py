"""Use cases: submit, steer, sync an agent, apply a plan. One transaction each, no network call inside it."""
