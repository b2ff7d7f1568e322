"""One scheduling cycle: which jobs start where, and why the others wait."""
