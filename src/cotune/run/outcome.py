"""What a run returns: the best configuration, every trial, and what it all cost."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from cotune.coordinator.ledger import Ledger, Round
from cotune.errors import Malformed, UsageError
from cotune.files import sealed, unsealed
from cotune.privacy.sums import Privacy
from cotune.problem import Problem
from cotune.run.differences import Differing
from cotune.run.joined import Assessment
from cotune.training.blind import against_blind
from cotune.trial import Finalist, HeldOut, Trial, best_of

if TYPE_CHECKING:
    import pandas as pd

    from cotune.model.model import Model
    from cotune.report.disclosure import Disclosure

#: The folder of a run's model, in the folder of the run.
MODEL = "model"


#: Standard errors to one side of a 90 % interval.
ONE_SIDED = NormalDist().inv_cdf(0.95)

#: What a figure is made of, from the most to the least trustworthy.
Of = Literal[
    "rows set aside",
    "federated cross-validation",
    "cross-validation",
    "validation rows",
    "prediction",
]


class Headline(msgspec.Struct, frozen=True):
    """The most honest figure of a run, in the metric's direction, and what it is `of`, in words.

    `error` is its standard error, 0 where that is not known; `rows` and `parties` are those it
    rests on (rows are 0 if not known).
    """

    value: float
    loss: float
    error: float
    of: Of
    rows: int
    parties: int
    words: str
    #: In 90 % of all cases the true figure lies within; None where that is not known.
    interval: tuple[float, float] | None = None


class Outcome(msgspec.Struct, frozen=True, dict=True):
    """The result of `tune`.

    `ended` says why the search stopped: its method came to its end, or a budget was spent.
    `searched` of the rounds were the search; those after it trained the model.
    """

    method: str
    problem: Problem
    trials: tuple[Trial, ...]
    rounds: tuple[Round, ...]
    parties: tuple[str, ...]
    ended: str = "finished"
    run: str | None = None
    report: dict[str, Any] = {}
    chosen: Trial | None = None
    searched: int | None = None
    privacy: Privacy = "plain"
    delta: float = 1e-5
    #: Of every noised total that was opened, those of rounds that were given up too.
    noises: tuple[float, ...] = ()
    #: The trained model's loss on rows that were set aside, if there were any.
    held_out: HeldOut | None = None
    #: The configurations that were trained and compared, the search's answer first, if several.
    finalists: tuple[Finalist, ...] = ()
    #: How far the parties' rows differ; None where they were not asked.
    differing: Differing | None = None
    #: What joining gained by the model, on rows set aside; None where the parties were not asked.
    joined: Assessment | None = None

    @cached_property
    def model(self) -> Model:
        """What the federation trained with the best configuration."""
        from cotune.model.model import Model

        folder = None if self.run is None else Path(self.run) / MODEL
        if folder is None or not folder.exists():
            raise UsageError("there is no model: the run was made without training")
        return Model.load(folder)

    @property
    def model_folder(self) -> str | None:
        """Where the model was saved, if it was trained in a run with a folder."""
        if self.run is None or self.searched is None:
            return None
        return str(Path(self.run) / MODEL)

    @property
    def best(self) -> Trial:
        """The trial that the method settled on, or that of least loss; see `best_of`."""
        return self.chosen or best_of(self.trials)

    @property
    def best_learner(self) -> str:
        return self.best.learner

    @property
    def best_params(self) -> dict[str, Any]:
        return self.best.params

    @property
    def best_loss(self) -> float:
        return self.best.loss

    @property
    def best_value(self) -> float:
        """The best trial's figure, in the metric's own direction: by this the search chose.

        The best of many trials is a little too good: see `headline`.
        """
        return self.problem.metric.value(self.best.loss)

    @property
    def best_error(self) -> float:
        """The standard error of the best figure; 0 where it is not known."""
        return self.best.error

    @property
    def headline(self) -> Headline:
        """The model's figure on rows that were set aside, or without these that of the search."""
        if self.held_out is None:
            searched = self.searched_for
            if not self._of_local_models(searched):
                return searched
            words = (
                f"{searched.words}; of models of single parties, which differ much, not the joint "
                "model's: see --holdout or --finalists 3"
            )
            return msgspec.structs.replace(searched, words=words)
        found = self.held_out
        rows = f"{found.rows} rows" if found.rows else "rows"
        parties = _counted(found.parties, "party", "parties")
        words = f"on {rows} that {parties} set aside"
        if found.folds:
            words = (
                f"{found.folds}-fold cross-validation on {rows} of models that {parties} trained"
            )
        metric = self.problem.metric
        if found.left_out:
            few = _counted(found.left_out, "row", "rows")
            words += f", but {few} of classes of which a party has too few"
        if found.personalized is not None:
            words += f"; {metric.value(found.personalized):.4f} after training at each party"
        judged = sum(finalist.held_out is not None for finalist in self.finalists)
        loss = found.loss
        what = "configurations" if found.folds else "trained models"
        words += f"; the best of {judged} {what}" if judged > 1 else ""
        if found.crossed is not None:
            loss = found.crossed
            words += ", corrected for having been chosen"
        if verdict := against_blind(self.problem, found):
            words += f"; {verdict}: not a model to use"
        return Headline(
            metric.value(loss),
            loss,
            found.error,
            "federated cross-validation" if found.folds else "rows set aside",
            found.rows,
            found.parties,
            words,
            self._interval(found),
        )

    def _of_local_models(self, searched: Headline) -> bool:
        """Whether the search's figure need not be near the joint model's."""
        local = searched.of in ("cross-validation", "prediction") and searched.parties > 1
        return local and self.differing is not None and self.differing.much(self.problem)

    def _interval(self, found: HeldOut) -> tuple[float, float] | None:
        """90 %, in the metric's direction: wider towards the worse, as the best of some was taken.

        By Bonferroni's inequality no model of those that could be compared is worse than its own
        such bound in 95 % of all cases, so the one that was chosen is not. Each learner's best and
        its default settings could be, whichever of the default settings were, and what took the
        place of one that was given up.
        """
        if not found.error:
            return None
        given_up = sum(bool(one.failed) for one in self.finalists)
        among = 2 * len({one.learner for one in self.finalists}) + given_up or 1
        worse = NormalDist().inv_cdf(1.0 - 0.05 / among)
        metric = self.problem.metric
        worst = metric.worst(self.problem.schema)
        shown = found.loss if found.crossed is None else found.crossed
        ends = (
            max(found.loss + worse * found.error, shown),
            min(found.loss - ONE_SIDED * found.error, shown),
        )
        low, high = sorted(metric.value(min(max(end, 0.0), worst)) for end in ends)
        return low, high

    @property
    def searched_for(self) -> Headline:
        """What the search found: the loss of the best trial, and what that rests on."""
        best = self.best
        of: Of = "cross-validation"
        parties = _counted(best.parties, "party", "parties")
        if best.predicted:
            of, words = "prediction", f"predicted from the searches of {parties}, not evaluated"
        elif best.validation is None:
            share = "" if best.fraction == 1.0 else f", {100 * best.fraction:.3g} % of the rows"
            words = f"{self.problem.folds}-fold cross-validation at {parties}{share}"
        else:
            rows = f"{best.validation} validation rows" if best.validation else "validation rows"
            of, words = "validation rows", f"on {rows} of {parties} in one round of training"
            if self.problem.judge == "federated":
                words = f"on {rows} of {parties} by a model that they trained without these"
        trials = len(self.trials)
        words += f"; the best of {trials} trials" if trials > 1 else ""
        if self.noises:
            words += "; noise was added, so it may be far from the true figure"
        return Headline(
            self.best_value, best.loss, best.error, of, best.validation or 0, best.parties, words
        )

    @property
    def epsilon(self) -> float | None:
        """What noised sums told of one party, by differential privacy at `delta`; None of none."""
        from cotune.privacy.protection import epsilon

        return epsilon(self.noises, self.delta) if self.noises else None

    @cached_property
    def disclosures(self) -> list[Disclosure]:
        """For each kind of message who learnt what, in plain words."""
        from cotune.report.disclosure import disclosures

        return disclosures(self.rounds)

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger(self.rounds)

    def leaderboard(self) -> pd.DataFrame:
        """One row per learner, the best first, with what its trials cost.

        Rounds and bytes are those of the whole search, in which the learners' messages travel
        together; the training that follows is not in them.
        """
        import pandas as pd

        learners = dict.fromkeys([self.best_learner, *(t.learner for t in self.trials)])
        board = pd.DataFrame([self._row(learner) for learner in learners])
        ranked = board.iloc[1:].sort_values("loss", kind="stable")
        return pd.concat([board.iloc[:1], ranked], ignore_index=True).drop(columns="loss")

    def _row(self, learner: str) -> dict[str, Any]:
        trials = [trial for trial in self.trials if trial.learner == learner]
        best = self.best if learner == self.best_learner else best_of(trials)
        search = Ledger(self.rounds[: self.searched])
        return {
            "learner": learner,
            self.problem.metric_name: self.problem.metric.value(best.loss),
            "error": best.error,
            "loss": best.loss,
            "trials": len(trials),
            "failed": sum(bool(trial.reasons) for trial in trials),
            "rounds": search.rounds,
            "bytes_up": search.bytes_up,
            "bytes_down": search.bytes_down,
            "fits": sum(trial.fits for trial in trials),
            "cpu_seconds": sum(trial.cpu_seconds for trial in trials),
            "params": best.params,
        }

    def trials_dataframe(self) -> pd.DataFrame:
        """One row per trial in the order of the run; parameters as columns `params_...`."""
        import pandas as pd

        return pd.DataFrame(
            [
                {
                    "number": number,
                    "learner": trial.learner,
                    "value": self.problem.metric.value(trial.loss),
                    "loss": trial.loss,
                    "error": trial.error,
                    **{f"params_{name}": value for name, value in trial.params.items()},
                    "fraction": trial.fraction,
                    "predicted": trial.predicted,
                    "parties": trial.parties,
                    "fits": trial.fits,
                    "cpu_seconds": trial.cpu_seconds,
                    "failed": "; ".join(f"{n} x {r}" for r, n in trial.reasons.items()),
                }
                for number, trial in enumerate(self.trials)
            ]
        )

    def summary(self) -> dict[str, Any]:
        """The figures of one JSON object, as `cotune tune --json` prints it."""
        return {
            "method": self.method,
            "learner": self.best_learner,
            "params": self.best_params,
            "loss": self.best_loss,
            "metric": self.problem.metric_name,
            "value": self.best_value,
            "headline": msgspec.to_builtins(self.headline),
            "finalists": [msgspec.to_builtins(finalist) for finalist in self.finalists],
            "error": self.best_error,
            "compare_by": self.problem.compare_by,
            "left_out": self.best.left_out,
            "differing": msgspec.to_builtins(self.differing),
            "joined": None if self.joined is None else self.joined.summary(),
            "parties": len(self.parties),
            "trials": len(self.trials),
            **self.ledger.summary(),
            "privacy": self.privacy,
            "epsilon": self.epsilon,
            "disclosed": self.ledger.disclosed,
            "disclosures": [msgspec.to_builtins(one) for one in self.disclosures],
            "failures": [msgspec.to_builtins(failure) for failure in self.ledger.failures],
            "ended": self.ended,
            "run": self.run,
            "model": self.model_folder,
            "report": self.report,
        }

    def save(self, path: str | Path) -> None:
        """Write the outcome as JSON; `Outcome.load` reads it back."""
        Path(path).write_bytes(self.encoded())

    def encoded(self) -> bytes:
        """The outcome's file, with a digest by which damage is noticed."""
        return sealed(self._without_replies())

    def _without_replies(self) -> Outcome:
        """Replies stay in the journal: an outcome is passed on, a journal is not."""
        rounds = tuple(msgspec.structs.replace(r, replies=None, total=None) for r in self.rounds)
        return msgspec.structs.replace(self, rounds=rounds)

    @classmethod
    def load(cls, path: str | Path) -> Outcome:
        """Read an outcome from its file, or from the folder of a finished run."""
        path = Path(path)
        file = path / "outcome.json" if path.is_dir() else path
        try:
            outcome = unsealed(file.read_bytes(), cls)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise UsageError(f"there is no outcome in {path}: is the run finished?") from error
        except OSError as error:
            raise UsageError(f"{file} cannot be read: {error.strerror}") from error
        except Malformed as error:
            raise UsageError(
                f"{file} cannot be read, {error}: restore it from a copy, or delete it and resume "
                "the run, whose journal makes it again"
            ) from error
        # a run's folder may have been moved since
        return msgspec.structs.replace(outcome, run=str(path)) if path.is_dir() else outcome


def _counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
