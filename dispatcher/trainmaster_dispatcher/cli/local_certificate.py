"""A certificate for this machine alone, by which clients that send keys over TLS only can reach a local installation."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from trainmaster_dispatcher.cli.embedded import private_file

_VALID = timedelta(days=825)
_RENEWED_BEFORE = timedelta(days=30)
_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "trainmaster up")])


def make_certificate(certificate: Path, key: Path) -> None:
    """Write a certificate for localhost that is its own authority, with its key, unless there is one that is still valid."""
    if certificate.exists() and key.exists() and _is_valid(certificate):
        return
    private = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    names = [x509.DNSName("localhost"), *(x509.IPAddress(ip_address(one)) for one in ("127.0.0.1", "::1"))]
    usage = {"digital_signature": True, "key_cert_sign": True, "crl_sign": True}
    others = (
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "encipher_only",
        "decipher_only",
    )
    made = (
        x509.CertificateBuilder()
        .subject_name(_NAME)
        .issuer_name(_NAME)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**usage, **dict.fromkeys(others, False)), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(private.public_key()), critical=False)
        .sign(private, hashes.SHA256())
    )
    key.unlink(missing_ok=True)
    private_file(key, private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode())
    certificate.write_bytes(made.public_bytes(Encoding.PEM))


def _is_valid(certificate: Path) -> bool:
    try:
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
    except ValueError:
        return False
    return found.not_valid_after_utc > datetime.now(UTC) + _RENEWED_BEFORE
