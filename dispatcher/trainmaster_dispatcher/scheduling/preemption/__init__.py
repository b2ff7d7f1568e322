"""Preemption: the choice of runs that end so that another job can start."""
