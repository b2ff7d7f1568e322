"""What-if studies: the real engine over simulated clusters, on a clock that jumps from event to event. Pure."""
