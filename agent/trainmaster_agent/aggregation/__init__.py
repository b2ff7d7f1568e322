"""The dispatcher's Kubernetes API as an extension API server of a cluster (``APIService``): the cluster's users, with its rights."""
