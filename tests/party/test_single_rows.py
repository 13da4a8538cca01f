"""Attacks on single rows: each moved the set of rows that a total is about, by one row."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest
from msgspec.structs import replace

import cotune
from cotune.coordinator.federation import Federation
from cotune.coordinator.journal import Journal
from cotune.engines.local import LocalEngine
from cotune.errors import DataError, FederationError
from cotune.party.inspect import describe
from cotune.party.key import SMALLEST_CELL, KeyFile
from cotune.party.task import Configuration
from cotune.party.tasks import Evaluate, Inspect
from cotune.party.train.bins import Bins
from cotune.party.train.grow import Start
from cotune.party.train.histogram import Grow
from cotune.problem import seed_of
from cotune.protocol.wire import Gathered, Refusal, Request, decode_reply, decode_request, encode
from cotune.site.policy import Policy
from cotune.testing import Faulty
from cotune.testing.faults import Killed
from tests.parts import people, problem_of, threads
from tests.privacy.agents import ready

TABLES = {f"site-{i}": people(rows, seed=i) for i, rows in enumerate((41, 47, 53, 60, 71))}
PRIVATE = ["masked", pytest.param("encrypted", marks=ready)]
#: Of `people`: age, a number that is mostly missing, a city of three.
BINS = Bins((2, 2, 3), (np.array([40.0], "<f4").tobytes(), np.array([0.0], "<f4").tobytes(), None))
CELLS = 3 + 3 + 4


class Sites(LocalEngine):
    """Parties with keys and rules of their own, as at real sites."""

    def __init__(self, state: Path, tables=TABLES, at_least="masked", **rules) -> None:
        keys = {name: KeyFile.opened(state / name, "data") for name in tables}
        super().__init__(
            tables, "target", executor=threads(), keys=keys, smallest_cell=SMALLEST_CELL
        )
        self._policy = Policy(at_least=at_least, **rules)

    def call(self, messages, timeout):
        refusals = {p: self._policy.check(decode_request(m)) for p, m in messages.items()}
        allowed = {party: m for party, m in messages.items() if refusals[party] is None}
        answers = super().call(allowed, timeout) if allowed else {}
        return {p: answers[p] if p in answers else refusals[p] for p in messages}


def sites(state, privacy="masked", tables=TABLES, **rules) -> Federation:
    return Federation(Sites(state, tables, at_least=privacy, **rules), quorum=1.0, privacy=privacy)


def tuned(federation, **options):
    return cotune.tune(
        federation, "defaults", learners=["decision_tree"], folds=2, train=False, progress=False,
        privacy=federation.privacy, **options,
    )  # fmt: skip


def schema_totals(federation, **options):
    """What a run's own journal has of the sums by which the schema is agreed."""
    kept: list = []

    class Watching(Journal):
        def record(self, entry, question):
            kept.append(entry)
            super().record(entry, question)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cotune.run.folder.Journal", Watching)
        with pytest.raises(FederationError) as refused:
            tuned(federation, **options)
    (measured,) = (entry for entry in kept if entry.task == "measure")
    return {n: measured.total.vector(n).tolist() for n in measured.total.sums}, str(refused.value)


@pytest.mark.parametrize("privacy", PRIVATE)
def test_neighbouring_holdouts_show_no_row_in_the_totals_of_the_schema(tmp_path, privacy):
    with sites(tmp_path, privacy, fewest=5) as federation:
        one, refused = schema_totals(federation, holdout=0.1981)
        other, _ = schema_totals(federation, holdout=0.1982)
    for name in ("numeric", "categories", "target"):
        assert one[name] == other[name]
    assert sum(one["target"]) == sum(map(len, TABLES.values()))
    assert "the holdout is 0.1981: this party takes shares of its rows in whole percents" in refused
    assert refused.endswith("use 0.2")
    with Federation(LocalEngine(TABLES, "target", executor=threads())) as simulated:
        one, other = (tuned(simulated, holdout=share) for share in (0.1981, 0.1982))
    assert one.trials[0].weight - other.trials[0].weight == 1.0, "the shares part one row"


@pytest.mark.parametrize("privacy", PRIVATE)
def test_a_site_sets_one_share_aside_for_good(tmp_path, privacy):
    with sites(tmp_path, privacy) as federation:
        tuned(federation, holdout=0.2)
        held = {n: federation.engine.party(n).held_out.index for n in TABLES}
        with pytest.raises(FederationError, match=r"aside, in every run; use --holdout 0\.2 or 0$"):
            tuned(federation, holdout=0.21)
    with sites(tmp_path, privacy) as restarted:
        with pytest.raises(FederationError, match=r"use --holdout 0\.2 or 0"):
            tuned(restarted, holdout=0.5, seed=3)
        tuned(restarted, seed=4)
        tuned(restarted, holdout=0.2, seed=5)
        for name, before in held.items():
            assert restarted.engine.party(name).held_out.index.equals(before)
            assert SMALLEST_CELL <= len(before) == SMALLEST_CELL * (len(before) // SMALLEST_CELL)


def counted(federation, share, seed):
    start = Start("boost", BINS, base=(0.0,), share=share)
    task = Grow(f"{seed}-{share!r}", counts=CELLS, wanted=(0,), start=start)
    return federation.sum(task).sum("counts")[:3].sum()  # rows in all bins of one column


def steps(seed, names, rounds=20):
    """Pairs of shares between which one row of one site is drawn, were the run's seed the key."""
    for name in list(names)[:rounds]:
        rows = len(TABLES[name])
        draws = np.random.default_rng(seed_of(seed_of(seed, "rows", name), 0)).random(rows)
        for draw in draws[:4]:
            yield float(draw - 1e-7), float(draw + 1e-7)


@pytest.mark.parametrize("privacy", PRIVATE)
def test_neighbouring_shares_of_a_trees_rows_show_no_row(tmp_path, privacy):
    problem = problem_of(*TABLES.values(), learners=("hgb",), seed=7)
    pairs = list(steps(7, TABLES))[: 20 if privacy == "masked" else 2]
    with sites(tmp_path, privacy, fewest=5) as federation:
        federation.problem = problem
        found = [counted(federation, high, 7) - counted(federation, low, 7) for low, high in pairs]
    assert all(abs(step) == 0 or abs(step) >= SMALLEST_CELL for step in found)
    with Federation(LocalEngine(TABLES, "target", executor=threads())) as simulated:
        simulated.problem = problem
        low, high = pairs[0]
        assert counted(simulated, high, 7) - counted(simulated, low, 7) == 1.0, "the attack works"


def test_what_a_site_draws_has_nothing_to_do_with_the_runs_seed(tmp_path):
    """Nor can a share near 1 leave out one row, or a share near 0 draw one."""
    with sites(tmp_path) as federation:
        for seed in (1, 2):
            federation.problem = problem_of(*TABLES.values(), learners=("hgb",), seed=seed)
            assert counted(federation, 0.999, seed) in (272, 272 - 5 * SMALLEST_CELL)
            assert counted(federation, 0.004, seed) >= 5 * SMALLEST_CELL


def test_a_fraction_beside_the_ladder_is_refused(tmp_path):
    with sites(tmp_path) as federation:
        federation.problem = problem_of(*TABLES.values())

        def asked(fraction):
            return federation.sum(Evaluate((Configuration("decision_tree", {}, fraction),)))

        with pytest.raises(FederationError, match=r"fraction is 0\.5003.*use 0\.5"):
            asked(0.5003)
        assert asked(0.0375 * 1.5**5).parties == 5


def injected(request: Request, **fields) -> bytes:
    """The message with further fields of the task, which older versions had."""
    raw = msgspec.msgpack.decode(encode(request))
    raw["task"] |= fields
    return msgspec.msgpack.encode(raw)


def test_inspect_tells_the_same_whatever_is_held_out(tmp_path):
    """Once one row was left of a site, and it named that row's category and class."""
    frame = people(60, seed=3, cities="abc").assign(zip=[f"z{i // 20}" for i in range(60)])
    frame.loc[[3, 8], "zip"] = "10019"
    with closing(Sites(tmp_path, {"north": frame}, at_least="encrypted")) as engine:
        replies = set()
        for seed in range(20):
            message = injected(Request("run", 1, "gather", Inspect(1)), holdout=0.999999, seed=seed)
            replies.add(engine.call({"north": message}, None)["north"])
        (reply,) = replies
    answer = decode_reply(reply)
    assert isinstance(answer, Gathered)
    assert b"10019" not in reply
    seen = msgspec.msgpack.decode(answer.body, type=Inspect.reply)
    categories = {column.name: column.categories for column in seen.columns}
    assert categories["zip"] == ("other", "z0", "z1", "z2")
    assert seen.classes == ("x", "y")


def test_a_site_that_may_not_be_inspected_tells_nothing(tmp_path):
    with (
        sites(tmp_path, refused=("inspect",)) as federation,
        pytest.raises(FederationError, match="does not perform the task 'inspect'"),
    ):
        tuned(federation)


def test_a_run_is_not_resumed_with_another_key(tmp_path):
    class Broken(Sites):
        calls = 0

        def call(self, messages, timeout):
            self.calls += 1
            if self.calls > 3:
                raise KeyboardInterrupt
            return super().call(messages, timeout)

    run, options = tmp_path / "run", {"holdout": 0.2, "trials": 5, "privacy": "plain"}
    engine = Broken(tmp_path / "before", at_least="plain")
    with Federation(engine) as federation, pytest.raises(KeyboardInterrupt):
        cotune.tune(
            federation, learners=["decision_tree"], train=False, progress=False, run=run, **options
        )
    with (
        sites(tmp_path / "lost", "plain") as federation,
        pytest.raises(FederationError, match=r"is not the one it has now .*start a new run"),
    ):
        cotune.resume(run, federation, train=False, progress=False)
    with sites(tmp_path / "before", "plain") as federation:
        assert len(cotune.resume(run, federation, train=False, progress=False).trials) == 5


def test_a_simulation_with_the_sites_keys_is_the_same_to_the_last_bit(tmp_path):
    found = []
    for _ in range(2):
        with sites(tmp_path, "plain") as federation:
            outcome = cotune.tune(
                federation, "flash", learners=["decision_tree", "extra_tree"], trials=3, folds=2,
                holdout=0.2, progress=False,
            )  # fmt: skip
            rows = people(30, seed=9).drop(columns="target")
            found.append(([t.loss for t in outcome.trials], outcome.model.table(rows)))
    assert found[0][0] == found[1][0]
    pd.testing.assert_frame_equal(found[0][1], found[1][1])


def test_a_party_with_fewer_rows_to_learn_from_than_folds_says_so(tmp_path):
    tables = {"one": people(12, labels="x").assign(target=["x", "y"] * 6)}
    with (
        sites(tmp_path, "plain", tables) as federation,
        pytest.raises(FederationError, match="7 rows to learn from are fewer than the 10 folds"),
    ):
        cotune.tune(
            federation, "defaults", learners=["decision_tree"], folds=10, holdout=0.4, train=False,
            progress=False,
        )  # fmt: skip


def differing(one, other):
    """How many rows are in one of two sets only."""
    return len(one.index.symmetric_difference(other.index))


def test_what_lies_outside_of_a_fold_differs_from_all_rows_by_no_row_or_by_a_cell(tmp_path):
    """With as many folds as rows there would be all but one of them."""
    problem = problem_of(*TABLES.values())
    sizes = set()
    with sites(tmp_path) as federation:
        for name, frame in TABLES.items():
            party = federation.engine.party(name)
            for holdout in (0.0, 0.2):
                whole, _ = party.divided(replace(problem, holdout=holdout))
                for folds in (2, 3, 5, 8, 11, len(whole)):
                    asked = replace(problem, holdout=holdout, folds=folds)
                    found = [party.divided(replace(asked, fold=fold)) for fold in range(folds)]
                    for kept, held in found:
                        assert differing(kept, whole) == len(held)
                        assert not held.index.intersection(kept.index).size
                    inside = [held.index for _, held in found if len(held)]
                    assert all(len(one) >= SMALLEST_CELL for one in inside)
                    assert sum(map(len, inside)) == len(set().union(*inside))
                    sizes |= {len(one) for one in inside}
                    if folds == len(whole):
                        assert not inside
            assert len(frame) == len(party.all_rows)
    assert len(sizes) > 5
    with Federation(LocalEngine(TABLES, "target", executor=threads())) as simulated:
        kept, _ = simulated.engine.party("site-0").divided(replace(problem, folds=41, fold=0))
        assert len(kept) == 40, "the attack works"


def test_another_target_shifts_no_few_rows_from_fold_to_fold(tmp_path):
    """Two targets that differ in one row: folds by one order would differ in a few."""
    frame = TABLES["site-4"].copy()
    frame["later"] = frame["target"]
    frame.loc[7, "later"] = "y" if frame.loc[7, "later"] == "x" else "x"
    columns = {"target": frame.drop(columns="later"), "later": frame.drop(columns="target")}
    asked = [
        replace(problem_of(columns[name], target=name), folds=4, fold=0)
        for name in ("target", "later")
    ]
    tables = {"site-4": frame}

    def apart(engine):
        with closing(engine):
            party = engine.party("site-4")
            return differing(*(party.divided(problem)[0] for problem in asked))

    assert apart(Sites(tmp_path, tables)) >= SMALLEST_CELL
    assert 0 < apart(LocalEngine(tables, "target", executor=threads())) < SMALLEST_CELL


@pytest.mark.parametrize("options", [{"judge": "federated"}, {"finalists": 2}])
def test_sites_train_and_evaluate_on_folds_and_resume_that(tmp_path, options):
    options |= {"learners": ["decision_tree"], "trials": 2, "folds": 3, "privacy": "masked"}
    with sites(tmp_path, fewest=5) as federation:
        whole = cotune.tune(federation, **options, progress=False)
        run = tmp_path / "run"
        dying = Federation(
            Faulty(federation.engine, dies_at=len(whole.rounds) // 2), quorum=1.0, privacy="masked"
        )
        with pytest.raises(Killed):
            cotune.tune(dying, **options, progress=False, run=run)
    with sites(tmp_path, fewest=5) as restarted:
        resumed = cotune.resume(run, restarted, progress=False)
    assert not whole.ledger.failures
    assert resumed.headline == whole.headline
    assert [trial.loss for trial in resumed.trials] == [trial.loss for trial in whole.trials]


def test_a_site_that_sets_another_share_aside_names_it_where_none_was_given(tmp_path):
    tables = {f"site-{i}": people(100 + i, seed=i) for i in range(3)}
    with sites(tmp_path, "plain", tables) as federation:
        tuned(federation, holdout=0.1)
        options = {"learners": ["decision_tree"], "trials": 1, "folds": 2, "progress": False}
        with pytest.raises(FederationError) as refused:
            cotune.tune(federation, **options)
        assert "the holdout is 0.2: this party sets 0.1 of these rows aside" in str(refused.value)
        assert str(refused.value).endswith("use --holdout 0.1 or 0")
        assert cotune.tune(federation, **options, holdout=0.1).headline.of == "rows set aside"
        assert cotune.tune(federation, **options, holdout=0).headline.of == "cross-validation"


def test_a_site_forgets_no_promise_from_one_fold_to_the_next(tmp_path):
    """What was promised of a run holds for all of its problems."""
    problem = replace(problem_of(*TABLES.values()), privacy="masked")
    task = Evaluate((Configuration("decision_tree", {}),))
    with sites(tmp_path, "masked", fewest=5) as federation:
        federation.problem, federation.run = problem, "run"
        assert federation.sum(task).parties == 5
        laxer = replace(problem, privacy="plain", fold=0)
        message = encode(Request("run", 9, "sum", task, laxer.digest, laxer))
        party = federation.engine.party("site-0")
        reply = decode_reply(party.perform(message))
    assert isinstance(reply, Refusal)
    assert "the sums of this run are private" in reply.sentence


RARE = [people(60, seed=1, labels="xy"), people(60, seed=2, labels="xy")]
RARE[0].loc[[4, 5], "target"] = "z"


def test_a_class_of_few_rows_is_confirmed_from_the_list_and_never_named(tmp_path):
    tables = {"north": RARE[0], "south": RARE[1]}
    with sites(tmp_path, "plain", tables) as federation:
        with pytest.raises(
            DataError, match=r"north: .*class of fewer than 5 rows.*--classes a,b,c"
        ):
            tuned(federation)
        outcome = tuned(federation, classes=["z", "y", "x"])
        assert outcome.problem.schema.classes == ("x", "y", "z")
        assert outcome.problem.schema.class_rows[2] == 2
        with pytest.raises(DataError, match=r"north: .*the list of classes lacks: complete it"):
            tuned(federation, classes=["x", "y"])
        with pytest.raises(DataError, match="no party has the class 'w'"):
            tuned(federation, classes=["w", "x", "y", "z"])
    assert describe(
        RARE[1], "target", Inspect(2, classes=("x", "y", "z")), SMALLEST_CELL
    ).classes == ("x", "y", "z"), "also those that the party does not have"


def test_no_list_of_classes_is_confirmed_of_a_quantity():
    """By trying lists every value of a site's target could be found."""
    frame = RARE[1].assign(target=np.arange(len(RARE[1])) + 0.5)
    listed = tuple(str(value) for value in frame["target"])
    with pytest.raises(DataError, match="a quantity here, of which no list of classes"):
        describe(frame, "target", Inspect(2, "classification", classes=listed), SMALLEST_CELL)
    assert describe(frame, "target", Inspect(2, "classification", classes=listed), 1).classes


def test_a_set_of_rows_is_refused_like_what_is_against_the_rules(tmp_path):
    with sites(tmp_path, "plain") as federation:
        problem = replace(problem_of(*TABLES.values()), holdout=0.123)
        task = Evaluate((Configuration("decision_tree", {}),))
        message = encode(Request("run", 1, "sum", task, problem.digest, problem))
        reply = decode_reply(federation.engine.call({"site-0": message}, None)["site-0"])
    assert isinstance(reply, Refusal)
    assert reply.code == "refused"


def test_a_problem_about_other_columns_is_malformed_and_sets_nothing_aside(tmp_path):
    """A message that cannot be answered must not decide which share is set aside for good."""
    problem = replace(problem_of(*TABLES.values()), holdout=0.9)
    schema, (first, *others) = problem.schema, problem.schema.columns
    wrong = [
        replace(problem, schema=changed)
        for changed in (
            replace(schema, columns=()),
            replace(schema, columns=(replace(first, name="none"), *others)),
            replace(schema, columns=(replace(first, kind="array"), *others)),
            replace(schema, columns=(replace(first, categories=("a", "a")), *others)),
            replace(schema, classes=("x", "y", "x")),
            replace(schema, target="none"),
            replace(schema, task="regression"),
        )
    ]
    task = Evaluate((Configuration("decision_tree", {}),))
    with closing(Sites(tmp_path, at_least="plain")) as engine:
        for asked in (*wrong, replace(problem, folds=-1)):
            message = encode(Request("run", 1, "sum", task, asked.digest, asked))
            reply = decode_reply(engine.call({"site-0": message}, None)["site-0"])
            assert isinstance(reply, Refusal)
            assert reply.code == "malformed"
    assert KeyFile.opened(tmp_path / "site-0", "data").holdout == 0.0
