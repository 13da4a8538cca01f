"""Only the lead of the same federation signs what a party performs."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotune.engines.nvflare.kits import create, open_kit
from cotune.engines.nvflare.signature import Signer, Verifier
from tests.engines.real import unpack


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two federations with the same names, in the folders `ours` and `theirs`."""
    folder = tmp_path_factory.mktemp("kits")
    for whose in ("ours", "theirs"):
        create(folder / whose / "kits", "localhost:8002", ["north", "west"], "anna")
        for packed in (folder / whose / "kits").glob("*.zip"):
            unpack(packed, folder / whose)
    return folder


def signer(folder: Path) -> Signer:
    return Signer(folder, open_kit(folder, "lead" if folder.name == "anna" else "site"))


@pytest.fixture
def north(kits: Path) -> Verifier:
    return Verifier(kits / "ours" / "north", open_kit(kits / "ours" / "north", "site"))


def test_the_lead_is_known_by_its_signature(kits: Path, north: Verifier) -> None:
    lead = signer(kits / "ours" / "anna")
    for message in (b"", b"what is asked", bytes(3_000_000)):
        assert north.signed(lead.certificate, lead.sign(message), message)


def test_another_message_is_not_what_was_signed(kits: Path, north: Verifier) -> None:
    lead = signer(kits / "ours" / "anna")
    assert not north.signed(lead.certificate, lead.sign(b"this"), b"that")


@pytest.mark.parametrize("who", ["ours/west", "ours/north", "theirs/anna"])
def test_nobody_else_can_sign(kits: Path, north: Verifier, who: str) -> None:
    """Another site of the federation, the party itself, the lead of another federation."""
    other, lead = signer(kits / who), signer(kits / "ours" / "anna")
    assert not north.signed(other.certificate, other.sign(b"asked"), b"asked")
    assert not north.signed(lead.certificate, other.sign(b"asked"), b"asked")
    assert not north.signed(other.certificate, lead.sign(b"asked"), b"asked")


@pytest.mark.parametrize("certificate", ["", "junk", "-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_junk_is_no_certificate(kits: Path, north: Verifier, certificate: str) -> None:
    assert not north.signed(certificate, b"", b"asked")
