"""Selection of clusters: which clusters a job may go to, and which of them is best."""
