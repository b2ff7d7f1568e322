"""Reservations: for large jobs by backfill, and in advance for queues."""
