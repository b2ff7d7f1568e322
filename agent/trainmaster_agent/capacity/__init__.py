"""What a cluster has: books that watches feed, and the report that is made of them. Pure: no I/O and no clock.

``docs/explanation/capacity.md`` tells what counts, and what does not.
"""
