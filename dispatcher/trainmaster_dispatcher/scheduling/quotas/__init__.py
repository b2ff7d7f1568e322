"""Quotas of queues, and fair share between queues."""
