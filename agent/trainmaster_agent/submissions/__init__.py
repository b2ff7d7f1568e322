"""Submission from inside a cluster: its objects that name the dispatcher as their manager become jobs, and get their status back."""
