"""The lead's signature under every message: who runs the server cannot ask in the lead's name."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from cotune.engines.nvflare.kits import Kit
from cotune.errors import UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.padding import PSS
    from cryptography.hazmat.primitives.hashes import HashAlgorithm
    from cryptography.x509 import Certificate


class Signer:
    """Signs with the key of the lead's kit."""

    def __init__(self, folder: Path, kit: Kit) -> None:
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        startup = folder / "startup"
        self._key = load_pem_private_key((startup / "client.key").read_bytes(), None)
        self._federation = kit.federation
        #: Goes with every message, so that parties need not know it beforehand.
        self.certificate = (startup / "client.crt").read_text()

    def sign(self, message: bytes) -> bytes:
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

        if not isinstance(self._key, RSAPrivateKey):
            raise UsageError("the lead's kit has no RSA key: make new kits")
        return self._key.sign(_signed(self._federation, message), *_scheme())


class Verifier:
    """Knows the federation's lead by the certificate that the federation's root has signed."""

    def __init__(self, folder: Path, kit: Kit) -> None:
        from cryptography.x509 import load_pem_x509_certificate

        self._root = load_pem_x509_certificate((folder / "startup" / "rootCA.pem").read_bytes())
        self._kit = kit
        self._known: dict[str, Certificate] = {}  # the last one, which is nearly always the same

    def signed(self, certificate: str, signature: bytes, message: bytes) -> bool:
        """Whether the federation's lead has signed this message."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

        try:
            lead = self._lead(certificate)
            key = lead.public_key()
            if not isinstance(key, RSAPublicKey):
                return False
            key.verify(signature, _signed(self._kit.federation, message), *_scheme())
        except (InvalidSignature, ValueError, TypeError):
            return False
        now = datetime.now(UTC)
        return lead.not_valid_before_utc <= now < lead.not_valid_after_utc

    def _lead(self, text: str) -> Certificate:
        """The lead's certificate; `ValueError` or `InvalidSignature` for any other."""
        from cryptography.x509 import NameOID, load_pem_x509_certificate

        if text not in self._known:
            certificate = load_pem_x509_certificate(text.encode())
            certificate.verify_directly_issued_by(self._root)
            names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
            if [name.value for name in names] != [self._kit.user]:
                raise ValueError("another certificate of the federation")
            self._known = {text: certificate}
        return self._known[text]


def _signed(federation: str, message: bytes) -> bytes:
    return b"cotune\0" + federation.encode() + b"\0" + message


def _scheme() -> tuple[PSS, HashAlgorithm]:
    from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS
    from cryptography.hazmat.primitives.hashes import SHA256

    return PSS(MGF1(SHA256()), PSS.DIGEST_LENGTH), SHA256()
