"""Whether and how a gang fits on the nodes of a cluster."""
