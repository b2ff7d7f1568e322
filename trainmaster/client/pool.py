"""Clients for the agents of many clusters in one process."""

from urllib.parse import urlsplit

import httpx

from trainmaster.client import wire
from trainmaster.client.aio import AgentClient

_PER_AGENT = httpx.Limits(max_connections=8, max_keepalive_connections=4, keepalive_expiry=60.0)
"""A sync, a long poll, and some streams."""


class AgentPool:
    """Makes clients that share what is dear to make: the certificates that are trusted.

    Connections are kept per agent. One pool of all connections would be searched from end to end for each call.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        # Plain HTTP has nothing to verify, so that the certificates need not be read.
        is_plain = urlsplit(url).scheme == "http"
        self._verify = False if is_plain else httpx.create_ssl_context(trust_env=wire.goes_through_proxies(url))

    def client(self, key: str) -> AgentClient:
        """A client with an agent's key; whoever asked for it closes it."""
        with wire.mapped_errors(self._url):
            transport = httpx.AsyncHTTPTransport(verify=self._verify, limits=_PER_AGENT)
            return AgentClient(self._url, key, transport=transport)
