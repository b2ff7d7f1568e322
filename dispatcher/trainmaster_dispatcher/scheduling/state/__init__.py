"""The state of the scheduler and its decisions. It imports no other package of the scheduler."""
