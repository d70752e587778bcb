"""The certificate of a door that listens beyond its own machine, made anew for each coordinator.

It certifies itself: a client takes it from the record of the door, where only those who may read the graph find it, and
accepts no other.
"""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import tempfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509

_NAME = "omniray"
_VALID = datetime.timedelta(days=3650)  # it ends with its coordinator
_SKEW = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its private key, as PEM."""

    public: str
    private: str = field(repr=False)

    @classmethod
    def new(cls, host: str) -> Certificate:
        from cryptography import x509  # a door on loopback needs none of it
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID

        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _NAME)])
        now = datetime.datetime.now(datetime.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _SKEW)
            .not_valid_after(now + _VALID)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectAlternativeName([_alternative(host)]), critical=False)
            .sign(key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return cls(made.public_bytes(serialization.Encoding.PEM).decode(), private.decode())

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # OpenSSL takes the chain from a file only; it is gone again before anybody else could look for it.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(self.private + self.public)
            file.flush()
            context.load_cert_chain(file.name)
        return context


def client_context(certificate: str) -> ssl.SSLContext:
    """The settings of a client that accepts this one certificate and no other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=certificate)
    return context


def _alternative(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
