from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotune.errors import Malformed
from cotune.methods.combine import merged
from cotune.party.propose import Ballot, Count, Explore, Propose, Vote
from cotune.party.task import Configuration
from cotune.party.tasks import Pair, Search
from cotune.space import Space, when
from tests.parts import ask, federation_of, iris, parts, party_of, problem_of
from tests.space.test_space import spaces

TABLES = parts(iris())
PROBLEM = problem_of(*TABLES.values())
SEARCH = Search(("decision_tree",), 8, "random")


@settings(max_examples=60)
@given(spaces(), st.integers(0, 2**32), st.integers(1, 8))
def test_the_elected_configuration_is_the_combination_of_all(space, seed, count):
    """From the ballots' total follows what the configurations themselves would be merged to."""
    rng = np.random.default_rng(seed)
    told = [space.sample(rng) for _ in range(count)]
    ballot = Ballot(space)
    params, loss, members = ballot.elected(ballot.sums([Pair(p, 0.25) for p in told]))
    expected = merged(space, told)
    assert params.keys() == expected.keys()
    for name in params:
        assert space[name].gap(params[name], expected[name]) < 1e-6
    assert (loss, members) == (0.25, count)


def test_ballots_add_up_over_parties():
    space = Space({"lr": (1e-4, 1.0, "log"), "kernel": ["rbf", "poly"],
                   "degree": when((1, 9), kernel="poly")})  # fmt: skip
    ballot = Ballot(space)
    one = ballot.sums([Pair({"lr": 1e-4, "kernel": "rbf"}, 0.1)])
    other = ballot.sums(
        [Pair({"lr": 1e-2, "kernel": "poly", "degree": 3}, 0.2),
         Pair({"lr": 1.0, "kernel": "poly", "degree": 5}, 0.6)]
    )  # fmt: skip
    params, loss, members = ballot.elected(one + other)
    assert params == {"lr": pytest.approx(1e-2), "kernel": "poly", "degree": 4}
    assert (loss, members) == (pytest.approx(0.3), 3)
    assert ballot.elected(np.zeros(ballot.width)) is None


def test_counts_are_of_good_configurations_and_proposals_of_their_clusters(tmp_path):
    party = party_of(TABLES["party-1"], tmp_path)
    assert ask(party, Explore(SEARCH), PROBLEM).cost.fits > 0
    with federation_of(TABLES, problem=PROBLEM) as federation:
        federation.sum(Explore(SEARCH))
        counts = federation.sum(Count(SEARCH)).sum("counts")
        dense = np.packbits(counts >= 1).tobytes()
        everywhere = Propose(SEARCH, "good", (dense,))
        sums = federation.sum(everywhere).sum("sums")
        (clusters,) = everywhere.clusters(PROBLEM)
        whole = federation.sum(Propose(SEARCH, "good")).sum("sums")
        fits = [entry.cost.fits for entry in federation.ledger]
    ballot = Ballot(PROBLEM.space("decision_tree"))
    by_cluster = sums.reshape(len(clusters), ballot.width)
    # every cell with a configuration is dense, so none is left out
    assert by_cluster.sum(axis=0) == pytest.approx(whole, abs=1e-7)
    assert by_cluster[:, -1].sum() == counts.sum() >= 3
    assert fits[0] > 0
    assert fits[1:] == [0, 0, 0]


def test_a_party_that_must_not_search_refuses():
    with federation_of(TABLES, problem=PROBLEM) as federation:
        (reply,) = federation.engine.call(
            {"party-1": _encoded(Propose(SEARCH, "best"))}, timeout=60
        ).values()
    assert b"does not remember" in reply


def _encoded(task):
    from cotune.protocol.wire import Request, encode

    return encode(Request("run", 1, "sum", task, PROBLEM.digest, PROBLEM))


def test_dense_cells_of_another_grid_are_refused():
    with pytest.raises(Malformed, match="not those of the learners' grids"):
        Propose(SEARCH, "good", (b"",)).terms(PROBLEM)


def test_a_vote_is_for_the_best_configurations_only():
    depths = (1, 2, 5)
    task = Vote(tuple(Configuration("decision_tree", {"max_depth": d}) for d in depths), 1)
    with federation_of(TABLES, problem=PROBLEM) as federation:
        votes = federation.sum(task).sum("votes")
    assert votes.sum() == 3
    assert votes[0] == 0  # a stump cannot tell three classes


def test_the_cost_of_a_search_is_told_once(tmp_path):
    """What a search cost is told once, in the round that it was made in."""
    party = party_of(TABLES["party-1"], tmp_path)
    first = ask(party, Propose(SEARCH, "best", anew=True), PROBLEM, round=1)
    again = ask(party, Propose(SEARCH, "best"), PROBLEM, round=2)
    assert first.cost.fits > 0
    assert again.cost.fits == 0
