"""Pure values and rules. No I/O and no clock: time is a parameter."""
