"""Questions over the engine: where a job stands, what a burst policy would do. They change nothing."""
