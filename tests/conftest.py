"""What the tests share: one pool of worker processes, and a registry that is clean again."""

from __future__ import annotations

import logging

import pytest

import cotune.learners
import cotune.methods
from cotune.party.task import OPERATOR


@pytest.fixture(scope="session")
def pool():
    """Two worker processes for all tests that need processes."""
    from loky import ProcessPoolExecutor

    executor = ProcessPoolExecutor(2)
    yield executor
    executor.shutdown(wait=True, kill_workers=True)


@pytest.fixture
def registry(monkeypatch):
    """Learners and methods that a test registers are gone after it."""
    monkeypatch.setattr(cotune.learners, "_registered", {})
    monkeypatch.setattr(cotune.methods, "_registered", {})


@pytest.fixture(autouse=True)
def silent_operator():
    """A party that a test starts in this process speaks to its operator; later ones do not."""
    yield
    logging.getLogger(OPERATOR).setLevel(logging.NOTSET)
