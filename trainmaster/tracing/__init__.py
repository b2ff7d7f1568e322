"""Traces of jobs: positions in them, spans as values, and their export by OpenTelemetry, which is imported only where it is wanted."""
