"""Kinds of other APIs that are taken as jobs, each in a file of its own: what their pods are, and how they begin and end.

A manifest of such a kind becomes a job whose roles have the manifest's pod templates (``specification.py``). On the cluster that is
chosen the agent creates the object itself, with the placement's additions to its pod templates, and the kind's own controller runs it.
"""
