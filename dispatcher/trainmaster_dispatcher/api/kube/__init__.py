"""The Kubernetes API of the dispatcher, as kubectl and client libraries speak it: what is in Postgres, read as Kubernetes objects."""
