"""The DNS of a cluster, as far as members need it: addresses of Services and of the hosts behind headless Services.

Every query is answered from what the API server has at that moment; nothing is cached.
"""

import logging
import socket
import ssl
import struct
import threading
from typing import Any

import httpx

from tests.cluster.control_plane import ControlPlane

_ZONE = ["svc", "cluster", "local"]
_PORT = 53
_A_RECORD, _ANY_RECORD, _INTERNET = 1, 255, 1
_ANSWER, _NO_SUCH_NAME = 0x8580, 0x8583
_TTL_SECONDS = 5
_LOOK_SECONDS = 0.5
_log = logging.getLogger(__name__)


class ClusterDns:
    """Answers at UDP port 53 of an address, in a thread of its own, which starts in the network namespace of its maker."""

    def __init__(self, plane: ControlPlane, address: str) -> None:
        trust = ssl.create_default_context(cafile=str(plane.ca_file))
        headers = {"Authorization": f"Bearer {plane.admin_token}"}
        self._http = httpx.Client(base_url=plane.url, headers=headers, verify=trust, timeout=5)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((address, _PORT))
        self._socket.settimeout(_LOOK_SECONDS)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True, name="cluster-dns")
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        self._socket.close()
        self._http.close()

    def _serve(self) -> None:
        while not self._closed.is_set():
            try:
                query, peer = self._socket.recvfrom(4096)
                self._socket.sendto(self._answer(query), peer)
            except TimeoutError:
                continue
            except (httpx.HTTPError, IndexError, struct.error, UnicodeDecodeError, OSError):
                _log.exception("a query could not be answered")

    def _answer(self, query: bytes) -> bytes:
        labels, end = _name(query)
        (kind,) = struct.unpack_from(">H", query, end)
        found = self._addresses(labels)
        records = found if found and kind in (_A_RECORD, _ANY_RECORD) else []
        flags = _NO_SUCH_NAME if found is None else _ANSWER
        head = query[:2] + struct.pack(">HHHHH", flags, 1, len(records), 0, 0)
        # Each record refers to the name of the question, which begins at byte 12.
        body = b"".join(
            struct.pack(">HHHIH", 0xC00C, _A_RECORD, _INTERNET, _TTL_SECONDS, 4) + socket.inet_aton(one)
            for one in records
        )
        return head + query[12 : end + 4] + body

    def _addresses(self, labels: list[str]) -> list[str] | None:
        """Return the addresses of a name; None if the name does not exist."""
        if labels[-3:] != _ZONE or len(labels) not in (5, 6):
            return None
        *host, service, namespace = labels[:-3]
        found = self._http.get(f"/api/v1/namespaces/{namespace}/services/{service}")
        if found.status_code != httpx.codes.OK:
            return None
        cluster_address = found.json()["spec"].get("clusterIP", "None")
        if not host and cluster_address != "None":
            return [str(cluster_address)]
        endpoints = self._endpoints(namespace, service)
        chosen = [one for one in endpoints if not host or one.get("hostname") == host[0]]
        return [address for one in chosen for address in one["addresses"]] if chosen or not host else None

    def _endpoints(self, namespace: str, service: str) -> list[dict[str, Any]]:
        selector = {"labelSelector": f"kubernetes.io/service-name={service}"}
        slices = self._http.get(f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices", params=selector)
        slices.raise_for_status()
        return [
            endpoint
            for one in slices.json()["items"]
            for endpoint in one.get("endpoints") or ()
            if endpoint.get("conditions", {}).get("ready", True)
        ]


def _name(query: bytes) -> tuple[list[str], int]:
    """Return the labels of the question's name, and the index of the byte after it."""
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode().lower())
        at += query[at] + 1
    return labels, at + 1
