"""Clients for the agents of many clusters in one process."""

import httpx

from trainmaster.client import wire
from trainmaster.client.aio import AgentClient

_PER_AGENT = httpx.Limits(max_connections=8, max_keepalive_connections=4, keepalive_expiry=60.0)
"""Connections of one agent: a sync, a long poll, and some streams."""


class AgentPool:
    """Makes clients that share the trusted certificates, which are expensive to load.

    Each agent has its own connections: one shared pool would be searched from end to end for each call.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._verify = wire.trusted_certificates(url)

    def client(self, key: str) -> AgentClient:
        """Return a client with an agent's key; the caller closes it."""
        with wire.mapped_errors(self._url):
            transport = httpx.AsyncHTTPTransport(verify=self._verify, limits=_PER_AGENT)
            return AgentClient(self._url, key, transport=transport)
