"""What creates and watches the members of a run: one port, several runtimes, one conformance suite."""
