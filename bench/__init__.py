"""Benchmarks: ``python -m bench.NAME`` prints one JSON object last. They are not part of the test suite."""
