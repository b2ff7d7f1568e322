"""Cluster capacity: a ledger of nodes and pods fed by watches, and the report made from it. Pure: no I/O and no clock.

``docs/explanation/capacity.md`` says what is counted and what is not.
"""
