from __future__ import annotations

import pytest

from cotune.party.memory import Evaluation, Memory, key
from cotune.party.tasks import Configuration

ONE = Configuration("tree", {"a": 1, "b": "x"})
OTHER = Configuration("tree", {"a": 2, "b": "x"})
JUDGED = Evaluation(0.1 + 0.2, 5, 0.25, 3, "the fit raised an error")


def test_the_order_of_parameters_does_not_make_another_configuration():
    assert key(ONE) == key(Configuration("tree", {"b": "x", "a": 1}))


@pytest.mark.parametrize(
    "different",
    [
        Configuration("forest", ONE.params),
        Configuration("tree", {"a": 2, "b": "x"}),
        Configuration("tree", {"a": None, "b": "x"}),
        Configuration("tree", {"a": "1", "b": "x"}),
        Configuration("tree", ONE.params, 0.5),
    ],
)
def test_another_learner_value_or_fraction_does(different):
    assert key(different) != key(ONE)


def test_what_was_put_is_known_and_nothing_else():
    memory = Memory(None)
    memory.put(ONE, JUDGED)
    assert memory.get(ONE) == JUDGED
    assert memory.get(OTHER) is None


def test_a_memory_outlives_its_process_bit_for_bit(tmp_path):
    path = tmp_path / "party" / "run.jsonl"
    Memory(path).put(ONE, JUDGED)
    assert Memory(path).get(ONE) == JUDGED


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_line_that_a_kill_cut_short_is_forgotten_and_written_over(tmp_path, cut):
    path = tmp_path / "run.jsonl"
    memory = Memory(path)
    memory.put(ONE, JUDGED)
    memory.put(OTHER, JUDGED)
    path.write_bytes(path.read_bytes()[:-cut])
    again = Memory(path)
    assert again.get(ONE) == JUDGED
    assert again.get(OTHER) is None
    again.put(OTHER, JUDGED)
    assert Memory(path).get(OTHER) == JUDGED
