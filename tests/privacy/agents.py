"""Whether the key agent can run here: real ciphertexts are tested where it can."""

from __future__ import annotations

import pytest

from cotune.privacy.doctor import diagnose

_found = diagnose()
#: Marks a test that needs the key agent; elsewhere it is skipped, and says what is missing.
ready = pytest.mark.skipif(not _found.ready, reason=_found.sentence)
