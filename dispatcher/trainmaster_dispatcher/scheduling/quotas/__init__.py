"""What queues may use, and whose turn it is."""
