"""Tests of the whole system, of its charts, images and wheels, and of the agent on real control planes."""
