from __future__ import annotations

import pytest

from cotune.party.memory import Batch, Memory, key
from cotune.party.task import Configuration

ONE = Configuration("tree", {"a": 1, "b": "x"})
OTHER = Configuration("tree", {"a": 2, "b": "x"})
FAILED = Batch((0, 1), (0.5,), 2, 0.25, 3, "the fit raised an error")
FITTED = Batch((0, 1), (0.1 + 0.2, None), 2, 0.25, 3, iterations="a", free={2: (0.7, None)})


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
    memory.put(ONE, FAILED)
    assert memory.get(ONE) == {0: FAILED, 1: FAILED}
    assert memory.get(OTHER) == {}


def test_folds_that_come_later_are_added_and_change_nothing_known():
    memory = Memory(None)
    memory.put(ONE, FITTED)
    later = Batch((1, 2), (0.4, 0.5), 2, 0.1, 4)
    memory.put(ONE, later)
    assert memory.get(ONE) == {0: FITTED, 1: FITTED, 2: later}
    assert [memory.get(ONE)[fold].loss(fold) for fold in range(3)] == [0.1 + 0.2, None, 0.5]


def test_fewer_iterations_are_known_at_no_cost():
    memory = Memory(None)
    memory.put(ONE, FITTED)
    free = Batch((0, 1), (0.7, None), 0, 0.0, 3)
    assert memory.get(OTHER) == {0: free, 1: free}


def test_what_was_fitted_itself_is_not_replaced_by_what_is_free():
    memory = Memory(None)
    own = Batch((0,), (0.6,), 1, 0.1, 1)
    memory.put(OTHER, own)
    memory.put(ONE, FITTED)
    assert memory.get(OTHER)[0] == own
    assert memory.get(OTHER)[1].loss(1) is None


@pytest.mark.parametrize("batch", [FAILED, FITTED])
def test_a_memory_outlives_its_process_bit_for_bit(tmp_path, batch):
    path = tmp_path / "party" / "run.jsonl"
    memory = Memory(path)
    memory.put(ONE, batch)
    again = Memory(path)
    assert again.get(ONE) == {0: batch, 1: batch}
    assert again.get(OTHER) == memory.get(OTHER)


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_line_that_a_kill_cut_short_is_forgotten_and_written_over(tmp_path, cut):
    path = tmp_path / "run.jsonl"
    memory = Memory(path)
    memory.put(ONE, FAILED)
    memory.put(OTHER, FAILED)
    path.write_bytes(path.read_bytes()[:-cut])
    again = Memory(path)
    assert again.get(ONE) == {0: FAILED, 1: FAILED}
    assert again.get(OTHER) == {}
    again.put(OTHER, FAILED)
    assert Memory(path).get(OTHER) == {0: FAILED, 1: FAILED}


def test_a_line_that_was_damaged_is_forgotten_with_a_warning(tmp_path, caplog):
    path = tmp_path / "run.jsonl"
    memory = Memory(path)
    memory.put(ONE, FAILED)
    memory.put(OTHER, FAILED)
    path.write_bytes(path.read_bytes().replace(b"0.25", b"0.26", 1))
    again = Memory(path)
    assert again.get(ONE) == {}
    assert again.get(OTHER) == {0: FAILED, 1: FAILED}
    assert "line 2 is damaged" in caplog.text
