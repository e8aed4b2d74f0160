"""The keys and certificates of a cluster of the tests: one authority, and who is who below it.

Knows openssl. Knows nothing of what listens where: alternative names are given.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_DAYS = "3650"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Whom a certificate names. `alternatives` are subject alternative names as openssl writes them, "IP:127.0.0.1"."""

    name: str
    user: str
    groups: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Certificates:
    """The folder with an authority's files, and those of each identity by its name."""

    folder: Path

    @property
    def authority(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def service_account_key(self) -> Path:
        """The private key that signs service accounts' tokens; its public half is `service_account_public_key`."""
        return self.folder / "service-account.key"

    @property
    def service_account_public_key(self) -> Path:
        return self.folder / "service-account.pub"

    def certificate(self, name: str) -> Path:
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def make(self, identities: tuple[Identity, ...]) -> None:
        """Makes what is missing; what is there stays, and with it the trust of whoever holds it."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not self.authority.exists():
            self._make_authority()
        if not self.service_account_public_key.exists():
            _openssl("genrsa", "-out", str(self.service_account_key), "2048")
            _openssl("rsa", "-in", str(self.service_account_key), "-pubout", "-out", str(self.service_account_public_key))
        for identity in identities:
            if not self.certificate(identity.name).exists():
                self._make_identity(identity)

    def _make_authority(self) -> None:
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", _DAYS),
            *("-subj", "/CN=vgpu-test-cluster", "-addext", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature"),
            *("-keyout", str(self.key("ca")), "-out", str(self.authority)),
        )

    def _make_identity(self, identity: Identity) -> None:
        subject = "".join(f"/O={group}" for group in identity.groups) + f"/CN={identity.user}"
        alternatives = ("-addext", f"subjectAltName={','.join(identity.alternatives)}") if identity.alternatives else ()
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", _DAYS),
            *("-CA", str(self.authority), "-CAkey", str(self.key("ca")), "-subj", subject, *alternatives),
            *("-addext", "basicConstraints=critical,CA:FALSE", "-addext", "keyUsage=critical,digitalSignature"),
            *("-addext", "extendedKeyUsage=serverAuth,clientAuth"),
            *("-keyout", str(self.key(identity.name)), "-out", str(self.certificate(identity.name))),
        )


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"openssl {arguments[0]} fails: {done.stderr.strip()}")
