"""Runtimes, which create and watch the members of runs: one port, several implementations, one conformance suite."""
