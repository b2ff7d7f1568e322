"""Trainmaster: the multi-cluster dispatcher for AI and batch jobs on Kubernetes."""

__version__ = "0.1.0"
