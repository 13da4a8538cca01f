"""What every method keeps to, whatever it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cotune.coordinator.federation import Federation
from cotune.data.schema import TaskKind
from cotune.engines.local import LocalEngine
from cotune.errors import UsageError
from cotune.methods import takes
from cotune.problem import Budget
from cotune.run.outcome import Outcome
from cotune.run.tune import resume, tune
from cotune.testing.faults import Fault, Faulty, Killed
from cotune.testing.tables import make_tables
from cotune.trial import best_of

#: Cheap enough for many runs; all of the defaults that a method may build on stay.
USUAL: dict[str, Any] = {
    "learners": ["decision_tree", "logistic_regression"],
    "folds": 3,
    "trials": 3,
    "progress": False,
}


def same_seed_same_outcome(method: str, **options: Any) -> None:
    with _federation() as federation:
        first = _tune(federation, method, **options)
        second = _tune(federation, method, **options)
    _assert_same(first, second)


def trials_are_configurations_of_the_space(method: str, **options: Any) -> None:
    with _federation() as federation:
        outcome = _tune(federation, method, **options)
    for trial in outcome.trials:
        if trial.params != outcome.problem.defaults(trial.learner):
            outcome.problem.space(trial.learner).validate(trial.params)
    assert outcome.best in outcome.trials
    assert outcome.best == (outcome.chosen or best_of(outcome.trials))
    alike = {(trial.fraction, trial.predicted, trial.weight) for trial in outcome.trials}
    if outcome.chosen is None and len(alike) == 1:
        assert outcome.best.loss == min(trial.loss for trial in outcome.trials)


def budgets_are_kept(method: str, **options: Any) -> None:
    with _federation() as federation:
        free = _tune(federation, method, **options)
        limits = {
            "rounds": free.ledger.rounds,
            "fits": free.ledger.fits,
            "bytes": free.ledger.bytes_up + free.ledger.bytes_down,
        }
        if takes(method, "rounds"):  # then it means something of the method's own
            del limits["rounds"]
        for limit, spent in limits.items():
            for share in (1.0, 0.6):
                allowed = max(1, int(share * spent))
                _assert_within(federation, method, {limit: allowed}, options)
        _assert_within(federation, method, {"seconds": 0.5}, options)


def one_party_is_enough(method: str, **options: Any) -> None:
    with _federation(parties=1) as federation:
        assert _tune(federation, method, **options).best.parties == 1


def regression_works(method: str, **options: Any) -> None:
    with _federation(task="regression") as federation:
        outcome = _tune(federation, method, **{"learners": ["decision_tree"]} | options)
    assert outcome.problem.metric_name == "rmse"
    assert outcome.best_value > 0


def a_nan_reply_is_left_out(method: str, **options: Any) -> None:
    _assert_survives(method, "nan", options)


def a_reply_of_wrong_shape_is_left_out(method: str, **options: Any) -> None:
    _assert_survives(method, "short", options)


def a_lost_reply_is_left_out(method: str, **options: Any) -> None:
    _assert_survives(method, "lost", options)


def a_late_reply_is_left_out(method: str, **options: Any) -> None:
    _assert_survives(method, "late", options)


def a_killed_run_resumes_to_the_same_outcome(method: str, **options: Any) -> None:
    """Killed before every round in turn, and resumed each time, over one journal."""
    with _federation() as federation:
        whole = _tune(federation, method, **options)
        with TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            dying = Faulty(federation.engine, dies_at=1)
            _until_killed(lambda: _tune(Federation(dying), method, run=run, **options))
            for _ in range(whole.ledger.rounds):
                dying = Faulty(federation.engine, dies_at=2)
                _until_killed(lambda: resume(run, Federation(dying), progress=False))  # noqa: B023
            resumed = resume(run, federation=Federation(federation.engine), progress=False)
    _assert_same(whole, resumed)


def masked_sums_give_the_same_outcome_or_are_refused_at_once(method: str, **options: Any) -> None:
    with _federation() as federation:
        watched = Faulty(federation.engine)
        try:
            private = _tune(Federation(watched), method, privacy="masked", **options)
        except UsageError:
            assert not watched.calls, "it was refused after parties had been asked"
            return
        plain = _tune(federation, method, **options)
    assert [_figures(trial) for trial in plain.trials] == [
        _figures(trial) for trial in private.trials
    ]
    assert all(entry.way == "masked" or entry.task == "inspect" for entry in private.ledger), (
        "something was told in the clear"
    )


METHOD_CHECKS: tuple[Callable[..., None], ...] = (
    same_seed_same_outcome,
    trials_are_configurations_of_the_space,
    budgets_are_kept,
    one_party_is_enough,
    regression_works,
    a_nan_reply_is_left_out,
    a_reply_of_wrong_shape_is_left_out,
    a_lost_reply_is_left_out,
    a_late_reply_is_left_out,
    a_killed_run_resumes_to_the_same_outcome,
    masked_sums_give_the_same_outcome_or_are_refused_at_once,
)


def check_method(method: str, **options: Any) -> None:
    """Run all checks for the method of that name; `options` are passed to `tune`."""
    for check in METHOD_CHECKS:
        check(method, **options)


@contextmanager
def _federation(parties: int = 3, task: TaskKind = "classification") -> Iterator[Federation]:
    """Parties whose fits run on a thread: quick to start, and as deterministic as processes."""
    with ThreadPoolExecutor(1) as executor:
        engine = LocalEngine(make_tables(parties, task=task), "target", executor=executor)
        with Federation(engine) as federation:
            yield federation


def _tune(federation: Federation, method: str, **options: Any) -> Outcome:
    return tune(federation, method, **(USUAL | options), train=False)


def _assert_same(one: Outcome, other: Outcome) -> None:
    """All but the time it took is equal, bit for bit."""
    assert [_figures(trial) for trial in one.trials] == [_figures(trial) for trial in other.trials]
    assert one.best_params == other.best_params
    for figure in ("rounds", "bytes_up", "bytes_down", "fits"):
        assert getattr(one.ledger, figure) == getattr(other.ledger, figure), figure


def _figures(trial: Any) -> tuple[Any, ...]:
    return trial.learner, trial.params, trial.loss, trial.parties, trial.fits, trial.reasons


def _assert_within(
    federation: Federation, method: str, limit: dict[str, float], options: dict[str, Any]
) -> None:
    from cotune.errors import FederationError

    try:
        ledger = _tune(federation, method, **options, **limit).ledger
    except FederationError:  # too little even for the first trial
        return
    spent = Budget(**limit)  # type: ignore[arg-type]
    assert spent.rounds is None or ledger.rounds <= spent.rounds
    assert spent.fits is None or ledger.fits <= spent.fits
    assert spent.bytes is None or ledger.bytes_up + ledger.bytes_down <= spent.bytes
    assert spent.seconds is None or ledger.seconds <= spent.seconds


def _assert_survives(method: str, fault: Fault, options: dict[str, Any]) -> None:
    """A party that fails does not take the run down, and the failures are on record."""
    with _federation() as federation:
        faulty = Federation(Faulty(federation.engine, {"party-2": fault}))
        outcome = _tune(faulty, method, **options)
    assert all(trial.parties <= 3 for trial in outcome.trials)
    assert {failure.party for failure in outcome.ledger.failures} == {"party-2"}


def _until_killed(work: Callable[[], object]) -> None:
    with suppress(Killed):
        work()
