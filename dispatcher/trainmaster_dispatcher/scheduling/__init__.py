"""From a state of jobs and clusters to a plan. Pure: no I/O, no clock, no randomness."""
