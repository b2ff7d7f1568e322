"""The dispatcher: queues, decides and hands whole jobs to clusters."""
