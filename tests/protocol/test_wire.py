from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.errors import Malformed
from cotune.party.task import Configuration, Term
from cotune.party.tasks import (
    Description,
    Evaluate,
    Evaluations,
    Inspect,
    Place,
    Search,
    SeenColumn,
)
from cotune.protocol.wire import (
    OWN_TERMS,
    Cost,
    Gathered,
    Refusal,
    Request,
    Summand,
    decode_body,
    decode_reply,
    decode_request,
    encode,
    pack_terms,
    rounded_terms,
    unpack_terms,
)
from tests.parts import iris, problem_of

TERMS = {"losses": Term(2, 0.0, 1.0, 2.0**-30, weighted=True)} | OWN_TERMS
PROBLEM = problem_of(iris())
TREE = Evaluate((Configuration("decision_tree", {"max_depth": 2}),))


def packed(losses=(0.25, 1.0), weight=10.0, cost=(4, 0.5)):
    values = {"losses": losses, "own": [weight, *cost]}
    return pack_terms(rounded_terms(TERMS, values, weight))


def raw(**vectors):
    return {name: np.array(values, dtype="<f8").tobytes() for name, values in vectors.items()}


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_malformed_and_nothing_else(message):
    for decode in (decode_request, decode_reply):
        with pytest.raises(Malformed):
            decode(message)
    for task in (TREE, Inspect(2), Search(("hgb",), 1)):
        with pytest.raises(Malformed):
            decode_body(task, msgspec.Raw(message))


@given(st.data())
def test_damaged_messages_are_malformed_or_messages(data):
    reply = encode(
        Gathered(msgspec.Raw(encode(Evaluations([0.5], [0.01], [3], [0.1], [0] * 4))), Cost(3))
    )
    for decode, message in (
        (decode_reply, reply),
        (decode_reply, encode(Summand(packed()))),
        (decode_reply, encode(Refusal("data", "no"))),
        (decode_request, encode(Request("run", 1, "sum", TREE, "digest"))),
    ):
        damaged = bytearray(message)
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
        try:
            decoded = decode(bytes(damaged))
            if isinstance(decoded, Gathered):
                decode_body(TREE, decoded.body, PROBLEM)
        except Malformed:
            pass


@pytest.mark.parametrize("beginning", [b"", b"\x81\xa1a", b"\x82\xa4type\xa8gathered\xa4body"])
def test_nesting_beyond_measure_is_malformed(beginning):
    for decode in (decode_request, decode_reply):
        with pytest.raises(Malformed):
            decode(beginning + b"\x91" * 100_000)


def test_a_request_keeps_everything_on_its_way():
    problem = problem_of(iris(), space="paper", learners=("decision_tree", "hgb"))
    for task in (TREE, Inspect(3, "regression", ("a",)), Search(("hgb",), 5, "random", 0.5)):
        request = Request("run", 7, "gather", task, problem.digest, problem)
        again = decode_request(encode(request))
        assert again == request
        assert again.attached.digest == problem.digest
        assert list(again.attached.space("hgb")) == list(problem.space("hgb"))


def test_tasks_are_a_closed_list():
    message = msgspec.msgpack.decode(encode(Request("run", 1, "sum", TREE)))
    message["task"]["type"] = "shell"
    with pytest.raises(Malformed, match="not a request of this version"):
        decode_request(encode(message))


@pytest.mark.parametrize(
    "field", [{"verb": "read"}, {"round": "1"}, {"run": "../up"}, {"task": None}, {"run": "x" * 65}]
)
def test_a_request_with_a_wrong_field_is_malformed(field):
    message = msgspec.msgpack.decode(encode(Request("run", 1, "sum", TREE)))
    with pytest.raises(Malformed):
        decode_request(encode(message | field))


def test_weighted_terms_are_multiplied_and_others_are_not():
    vectors = unpack_terms(TERMS, packed())
    assert vectors["losses"].tolist() == [2.5, 10.0]
    assert vectors["own"].tolist() == [10.0, 4.0, 0.5]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"losses": [np.nan, 0.0]}, "losses of the reply is not finite"),
        ({"losses": [np.inf, 0.0]}, "losses of the reply is not finite"),
        ({"losses": [11.0, 0.0]}, "out of bounds"),
        ({"losses": [-1.0, 0.0]}, "out of bounds"),
        ({"losses": [1.0]}, "another length"),
        ({"own": [0.0, 4.0, 0.5], "losses": [0.0, 0.0]}, "weight is not above 0"),
        ({"own": [-1.0, 4.0, 0.5], "losses": [0.0, 0.0]}, "not finite or out of bounds"),
        ({"own": [np.nan, 4.0, 0.5]}, "not finite or out of bounds"),
        ({"own": [np.inf, 4.0, 0.5]}, "not finite or out of bounds"),
        ({"own": [10.0, -1.0, 0.5]}, "own of the reply"),
        ({"more": [1.0]}, "not the ones the task asked for"),
    ],
)
def test_a_summand_that_does_not_fit_is_malformed(change, sentence):
    with pytest.raises(Malformed, match=sentence):
        unpack_terms(TERMS, packed() | raw(**change))


def test_a_summand_without_a_term_is_malformed():
    without = {name: term for name, term in packed().items() if name != "own"}
    with pytest.raises(Malformed, match="not the ones"):
        unpack_terms(TERMS, without)


def test_a_body_of_another_task_is_malformed():
    body = msgspec.Raw(encode({"something": "else"}))
    with pytest.raises(Malformed, match="does not fit the task evaluate"):
        decode_body(TREE, body)


def test_a_refusal_is_one_line_without_control_characters():
    """It is shown to the user, whose terminal would obey them."""
    reply = decode_reply(encode(Refusal("data", "\x1b[2Jlost\u202e\nall is well" + "x" * 10**6)))
    assert isinstance(reply, Refusal)
    assert reply.sentence.startswith(" [2Jlost  all is well")
    assert len(reply.sentence) <= 4096
    kind = Refusal("data", "column 'Größe' has 3 different texts")
    assert decode_reply(encode(kind)) == kind


@pytest.mark.parametrize("changed", ["categories", "classes"])
def test_a_party_does_not_name_more_categories_or_classes_than_an_honest_one(changed):
    names = tuple(map(str, range(1001)))
    for known in (names[:1000], names):
        column = SeenColumn("a", "categorical", categories=known if changed == "categories" else ())
        classes = known if changed == "classes" else ("x", "y")
        seen = Description((), (column,), "y", False, Place(), classes)
        body = msgspec.Raw(encode(seen))
        if len(known) == 1000:
            assert decode_body(Inspect(2), body) == seen
        else:
            with pytest.raises(Malformed, match="1,001"):
                decode_body(Inspect(2), body)


def test_costs_add_up():
    assert Cost(1, 0.5) + Cost(2, 0.25) == Cost(3, 0.75)
