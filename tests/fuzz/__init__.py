"""Hostile input through the real doors: short by default, at length with ``TRAINMASTER_DEEP=1``."""
