"""The certificate of an installation on one machine."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from trainmaster_dispatcher.cli import local_certificate


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    made = tmp_path / "certificate.pem", tmp_path / "keys" / "tls"
    local_certificate.make_certificate(*made)
    return made


def test_a_certificate_is_its_own_authority_for_this_machine(files: tuple[Path, Path]) -> None:
    certificate, key = files
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    (found,) = ssl.create_default_context(cafile=certificate).get_ca_certs()
    assert ("IP Address", "127.0.0.1") in found["subjectAltName"]
    assert ("DNS", "localhost") in found["subjectAltName"]
    assert key.stat().st_mode & 0o077 == 0


def test_it_is_kept_while_it_is_valid_and_made_again_before_it_ends(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = files[0].read_bytes()
    local_certificate.make_certificate(*files)
    assert files[0].read_bytes() == first
    monkeypatch.setattr(local_certificate, "_RENEWED_BEFORE", timedelta(days=900))
    assert datetime.now(UTC) + timedelta(days=900) > datetime.now(UTC) + local_certificate._VALID
    local_certificate.make_certificate(*files)
    second = files[0].read_bytes()
    assert second != first
    files[0].write_text("broken")
    local_certificate.make_certificate(*files)
    assert files[0].read_bytes() not in (b"broken", second)
