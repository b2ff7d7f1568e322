"""What is kept for later: for large jobs by backfill, and in advance for queues."""
