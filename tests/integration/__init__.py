"""Tests of parts together: the dispatcher on a real Postgres, runtimes on real processes and on the fake API server."""
