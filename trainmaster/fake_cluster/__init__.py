"""Pure models of clusters: nodes, gang placement, run times, failures. No I/O, no clock; time is a parameter."""
