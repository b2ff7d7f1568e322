"""Access to an API server: its address and credentials, from inside the cluster or by a kubeconfig.

Files, tokens, exec plug-ins and their renewal are handled by the Kubernetes client (``kubernetes.aio.config``).
"""

import ssl
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainmaster_agent.kube.errors import KubeError


class AccessError(KubeError):
    """No way to an API server is configured; the message names what was tried."""


@dataclass(frozen=True, slots=True)
class ApiServerAccess:
    """``configuration`` is kubernetes.aio's: its hook renews tokens before they expire."""

    configuration: Any
    tls: ssl.SSLContext | None

    @property
    def host(self) -> str:
        return str(self.configuration.host).rstrip("/")

    @property
    def server_name(self) -> str | None:
        return self.configuration.tls_server_name or None

    @property
    def proxy(self) -> str | None:
        return self.configuration.proxy or None

    async def authorization(self) -> str | None:
        """Return the header's value, or None where a client certificate authenticates. Renews a token that is about to expire."""
        token: str | None = await self.configuration.get_api_key_with_prefix("BearerToken")
        if token is None and self.configuration.username:
            return str(self.configuration.get_basic_auth_token())
        return token


@dataclass(frozen=True, slots=True)
class KeyAccess:
    """Access to the dispatcher's Kubernetes API by its address and an API key."""

    host: str
    key: str
    tls: ssl.SSLContext | None = None
    server_name: str | None = None
    proxy: str | None = None

    async def authorization(self) -> str:
        """Return the header's value."""
        return f"Bearer {self.key}"


def _check_exists(kubeconfig: Path | None) -> None:
    """Refuse a missing file, of which the library says that it lacks a context. Raises AccessError."""
    if kubeconfig is not None and not kubeconfig.exists():
        raise AccessError(f"no access to a Kubernetes API server: {kubeconfig}: no such file")


async def open_access(kubeconfig: Path | None = None, context: str | None = None) -> ApiServerAccess:
    """Read ``kubeconfig`` where it is given, else the service account of this pod. Raises AccessError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from kubernetes.aio import config
        from kubernetes.aio.client import Configuration
        from kubernetes.aio.client.rest import RESTClientObject

    _check_exists(kubeconfig)
    load: Any = config  # kubernetes.aio has no types
    configuration = Configuration()
    try:
        if kubeconfig is not None:
            await load.load_kube_config(
                config_file=str(kubeconfig), context=context, client_configuration=configuration, persist_config=False
            )
        else:
            load.load_incluster_config(client_configuration=configuration)
    except (config.ConfigException, OSError, ValueError) as error:
        where = str(kubeconfig) if kubeconfig is not None else "the service account of this pod"
        raise AccessError(f"no access to a Kubernetes API server by {where}: {error}") from error
    tls = RESTClientObject(configuration).ssl_context if configuration.host.startswith("https") else None
    return ApiServerAccess(configuration, tls)
