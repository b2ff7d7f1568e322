"""What dispatcher and agents must agree on about a cluster. Pure: no I/O, no clock, and nothing but the protocol is imported."""
