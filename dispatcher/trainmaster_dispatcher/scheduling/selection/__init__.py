"""Which clusters a job may go to, and which of them is best."""
