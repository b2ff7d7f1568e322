"""Questions answered over a fork of the engine: the position of a job, a dry run, a burst preview. They change nothing."""
