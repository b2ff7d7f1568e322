"""A client of one Kubernetes API server: requests, lists, watches, the Lease. Knows nothing of runs and jobs."""
