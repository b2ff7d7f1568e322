"""Which runs end so that another job can start."""
