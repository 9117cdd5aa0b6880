"""The certificate for TLS: what is refused, what is renewed, what is logged."""

import ssl
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.config.certificate import (
    WARN_DAYS,
    WARN_EVERY_S,
    CertificateError,
    ServerCertificate,
    open_certificate,
    read_certificate,
)
from gateway.config.loader import ConfigError, read_config
from tests.support.certificates import write_certificate

DAY_S = 86_400


def test_without_files_there_is_no_tls() -> None:
    assert open_certificate("", "") is None


def test_old_versions_of_tls_are_refused(tmp_path: Path) -> None:
    assert read_certificate(*write_certificate(tmp_path)).context.minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("key", ["tls_certificate", "tls_key"])
def test_one_file_without_the_other_is_a_problem(tmp_path: Path, key: str) -> None:
    (tmp_path / "x.toml").write_text(f'[server]\n{key} = "x.pem"\n')
    with pytest.raises(ConfigError, match=f"together with {key}"):
        read_config(tmp_path / "x.toml", {})


def test_paths_are_relative_to_the_configuration_file(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text('[server]\ntls_certificate = "a.pem"\ntls_key = "/b.pem"\n')
    server = read_config(tmp_path / "x.toml", {}).server
    assert (server.tls_certificate, server.tls_key) == (str(tmp_path / "a.pem"), "/b.pem")


def test_what_cannot_be_used_is_refused_with_its_reason(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    write_certificate(other)
    with pytest.raises(CertificateError, match="does not belong to the certificate"):
        read_certificate(certificate, other / "key.pem")
    with pytest.raises(CertificateError, match=r"missing\.pem cannot be read: No such file"):
        read_certificate(certificate, tmp_path / "missing.pem")
    with pytest.raises(CertificateError, match="is no PEM certificate"):
        read_certificate(key, key)
    with pytest.raises(CertificateError, match="without a passphrase"):
        read_certificate(certificate, certificate)


async def test_a_renewed_file_is_adopted_once(tmp_path: Path) -> None:
    served = ServerCertificate(*write_certificate(tmp_path))
    changes: list[str] = []
    served.on_change = lambda: changes.append(served.current.fingerprint)
    first = served.current
    await served.check()
    assert served.current is first
    write_certificate(tmp_path)
    with capture_logs() as lines:
        await served.check()
        await served.check()
    assert served.current.fingerprint != first.fingerprint
    assert changes == [served.current.fingerprint]
    assert [line["event"] for line in lines] == ["certificate_renewed"]


async def test_files_that_cannot_be_used_are_logged_once_and_change_nothing(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    served = ServerCertificate(certificate, key)
    first, whole = served.current, key.read_bytes()
    write_certificate(tmp_path)
    key.write_bytes(whole)  # half of a renewal
    with capture_logs() as lines:
        await served.check()
        await served.check()
    assert [line["event"] for line in lines] == ["certificate_not_renewed"]
    assert served.current is first
    certificate.unlink()
    with capture_logs() as lines:
        await served.check()
    assert "cannot be read" in lines[0]["error"]
    write_certificate(tmp_path)
    await served.check()
    assert served.current is not first


async def test_the_end_of_its_validity_is_logged_once_a_day_until_it_is_renewed(tmp_path: Path) -> None:
    now_s = [read_certificate(*write_certificate(tmp_path, days=90)).expires_s - (WARN_DAYS + 1) * DAY_S]
    files = (tmp_path / "cert.pem", tmp_path / "key.pem")
    with capture_logs() as lines:
        served = ServerCertificate(*files, clock=lambda: now_s[0])
        for _ in range(4):
            now_s[0] += WARN_EVERY_S / 2
            await served.check()
            await served.check()
    assert [line["event"] for line in lines] == ["certificate_expires"]
    with capture_logs() as lines:
        now_s[0] += WARN_EVERY_S
        await served.check()
        write_certificate(tmp_path, days=200)
        await served.check()
        await served.check()
    assert [line["event"] for line in lines] == ["certificate_expires", "certificate_renewed"]
