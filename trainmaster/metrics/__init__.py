"""Metrics of the processes: definitions, and the page that Prometheus reads.

It imports nothing of the rest of the system; measuring code imports it, never the other way round.
"""

from importlib.util import find_spec

if find_spec("prometheus_client") is None:
    raise ModuleNotFoundError(
        "metrics need the package prometheus-client: install trainmaster-agent or trainmaster-dispatcher",
        name="prometheus_client",
    )
