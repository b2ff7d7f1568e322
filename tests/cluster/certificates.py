"""Keys and certificates of one control plane, made by the ``openssl`` program: no Python package has to be there for it."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

FRONT_PROXY = "front-proxy-client"
"""The common name of the API server's certificate as a front proxy."""
_FILES = (
    "ca.crt",
    "server.crt",
    "server.key",
    "accounts.key",
    "accounts.pub",
    "front-proxy.crt",
    "front-proxy.key",
    "to-kubelet.crt",
    "to-kubelet.key",
)
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_NAMES = "subjectAltName=IP:127.0.0.1,IP:10.77.0.1,DNS:localhost,DNS:kubernetes.default.svc"
"""The second address is that of API servers of real nodes."""


@dataclass(frozen=True)
class Certificates:
    """Files. One server certificate serves the API server and the kubelet's logs, as both listen on loopback."""

    authority: Path
    server: Path
    server_key: Path
    accounts_key: Path
    """Signs the tokens of service accounts."""
    accounts_public: Path
    front_proxy: Path
    """By which the API server shows extension API servers that it is the one."""
    front_proxy_key: Path
    to_kubelet: Path
    """By which the API server is let in by real kubelets."""
    to_kubelet_key: Path

    @classmethod
    def make(cls, folder: Path) -> "Certificates":
        folder.mkdir(parents=True, exist_ok=True)
        made = cls(*(folder / name for name in _FILES))
        _openssl("req", "-x509", *_KEY, "-keyout", folder / "ca.key", "-out", made.authority, "-days", "30", "-subj", "/CN=ca",
                 "-addext", "keyUsage=critical,keyCertSign,cRLSign")  # fmt: skip
        made.sign(made.server, made.server_key, _NAMES, "server", "serverAuth")
        made.sign(made.front_proxy, made.front_proxy_key, "subjectAltName=DNS:front-proxy", FRONT_PROXY, "clientAuth")
        made.sign(
            made.to_kubelet,
            made.to_kubelet_key,
            "subjectAltName=DNS:to-kubelet",
            "to-kubelet/O=system:masters",
            "clientAuth",
        )
        _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-out", made.accounts_key)
        _openssl("pkey", "-in", made.accounts_key, "-pubout", "-out", made.accounts_public)
        return made

    def sign(self, certificate: Path, key: Path, names: str, subject: str, usage: str) -> None:
        """Write a certificate of the authority with its key; ``names``: its alternative names as an extension."""
        folder = self.authority.parent
        request, extensions = certificate.with_suffix(".csr"), certificate.with_suffix(".ext")
        extensions.write_text(f"{names}\nbasicConstraints=CA:FALSE\nextendedKeyUsage={usage}\n")
        _openssl("req", *_KEY, "-keyout", key, "-out", request, "-subj", f"/CN={subject}")
        _openssl("x509", "-req", "-in", request, "-CA", self.authority, "-CAkey", folder / "ca.key", "-CAcreateserial",
                 "-out", certificate, "-days", "30", "-extfile", extensions)  # fmt: skip


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
