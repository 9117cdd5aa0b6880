"""Certificates that no authority has confirmed, written as a renewal writes them: whole, in place of the old one."""

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def write_certificate(folder: Path, name: str = "127.0.0.1", *, days: float = 90) -> tuple[Path, Path]:
    """The files of a certificate for the host ``name`` that is valid for ``days``, and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a test")])
    today = dt.datetime.now(dt.UTC)
    try:
        host: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        host = x509.DNSName(name)
    end = today + dt.timedelta(days=days)
    made = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(min(today, end) - dt.timedelta(days=1)).not_valid_after(end)
    made = made.add_extension(x509.SubjectAlternativeName([host]), critical=False)
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    _replace(folder / "cert.pem", made.sign(key, hashes.SHA256()).public_bytes(pem))
    _replace(folder / "key.pem", key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return folder / "cert.pem", folder / "key.pem"


def _replace(path: Path, content: bytes) -> None:
    draft = path.with_suffix(".new")
    draft.write_bytes(content)
    draft.chmod(0o600)
    draft.rename(path)
