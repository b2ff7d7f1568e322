"""Tests that kill, freeze and cut off real processes of the whole system."""
