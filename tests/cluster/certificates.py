"""Keys and certificates of one control plane, made by the ``openssl`` program: no Python package has to be there for it."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

_NAMES = "subjectAltName=IP:127.0.0.1,DNS:localhost,DNS:kubernetes.default.svc"


@dataclass(frozen=True)
class Certificates:
    """Files. One server certificate serves the API server and the kubelet's logs, as both listen on loopback."""

    authority: Path
    server: Path
    server_key: Path
    accounts_key: Path
    """Signs the tokens of service accounts."""
    accounts_public: Path

    @classmethod
    def make(cls, folder: Path) -> "Certificates":
        folder.mkdir(parents=True, exist_ok=True)
        made = cls(*(folder / name for name in ("ca.crt", "server.crt", "server.key", "accounts.key", "accounts.pub")))
        authority_key, request, names = folder / "ca.key", folder / "server.csr", folder / "server.ext"
        names.write_text(f"{_NAMES}\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n")
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        _openssl("req", "-x509", *key, "-keyout", authority_key, "-out", made.authority, "-days", "30", "-subj", "/CN=ca",
                 "-addext", "keyUsage=critical,keyCertSign,cRLSign")  # fmt: skip
        _openssl("req", *key, "-keyout", made.server_key, "-out", request, "-subj", "/CN=server")
        _openssl("x509", "-req", "-in", request, "-CA", made.authority, "-CAkey", authority_key, "-CAcreateserial",
                 "-out", made.server, "-days", "30", "-extfile", names)  # fmt: skip
        _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-out", made.accounts_key)
        _openssl("pkey", "-in", made.accounts_key, "-pubout", "-out", made.accounts_public)
        return made


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
