"""The scheduler process: one leader that loads, decides and applies, and warm standbys."""
