"""What a command was asked: carried out run by run, and written down for a comparison."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotune.errors import DataError, Malformed, UsageError

if TYPE_CHECKING:
    from cotune.coordinator.federation import Federation
    from cotune.run.outcome import Outcome

#: The file that makes a folder a comparison's.
COMPARISON = "compare.json"
#: Options that say how the federation is made; the seed is the tuning's too.
FEDERATION = ("kit", "target", "parties", "split", "seed", "quorum", "timeout", "processes")
#: Those that the sites of a real federation decide.
OF_SIMULATIONS = ("target", "parties", "split", "processes")
#: Options of methods, which not every method has.
OPTIONS = (
    "sampler", "surface", "single_shot", "few_shot", "repeats", "surrogate", "keep",
    "disclose", "wasserstein", "free_pairs", "pruning", "reshuffle", "inner", "tolerance", "until",
    "wrapper", "combine", "min_points", "edition", "top",
    "rounds", "max_rounds", "clients_per_round", "objective", "arms", "epsilon", "step_size",
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """What the user asked: of `simulate` or `connect`, of `tune`, and by which methods."""

    data: list[str]
    methods: list[str]
    federation: dict[str, Any]
    settings: dict[str, Any]
    options: dict[str, Any]

    @classmethod
    def of(cls, data: Sequence[str], methods: Sequence[str], given: Mapping[str, Any]) -> Plan:
        """Sort the given options by whom they concern; refuse what no method understands."""
        plan = cls(
            data=[os.path.abspath(source) if os.path.exists(source) else source for source in data],
            methods=list(dict.fromkeys(methods)),
            federation={name: given[name] for name in FEDERATION if given[name] is not None},
            settings={k: v for k, v in given.items() if k not in (*FEDERATION, *OPTIONS)},
            options={name: given[name] for name in OPTIONS if given[name] is not None},
        )
        plan.settings["seed"] = given["seed"]
        plan._check_federation()
        plan.check()
        return plan

    @property
    def about(self) -> str:
        """What is tuned on, for a sentence."""
        kit = self.federation.get("kit")
        return ", ".join(self.data) if kit is None else f"the federation of {kit}"

    @property
    def name(self) -> str:
        """A short name of that for the run's folder."""
        from cotune.run.simulate import data_name

        kit = self.federation.get("kit")
        return data_name(self.data) if kit is None else Path(kit).name

    def _check_federation(self) -> None:
        """Rows are given here, or the sites have them."""
        if "kit" not in self.federation:
            if not self.data:
                raise UsageError("give DATA (files, sklearn:NAME) or --federation KIT")
            return
        self.federation["kit"] = os.path.abspath(self.federation["kit"])
        if self.data:
            raise UsageError(
                f"--federation has its own data: leave {self.data[0]} out, and give it to "
                "`cotune party start` at its site"
            )
        for option in OF_SIMULATIONS:
            if option in self.federation:
                raise UsageError(f"--{option} is decided at the sites: leave it out")

    def check(self) -> None:
        """A comparison must not fail over the name of its last method after hours."""
        from cotune.methods import check_judge, takes

        if self.settings.get("judge") == "federated":
            for method in self.methods:
                check_judge(method)
        if "fedex" in self.methods and len(self.methods) > 1:
            from cotune.run.settings import HOLDOUT_OF_NETWORKS

            if self.settings.get("metric") is None:
                raise UsageError(
                    "fedex is judged by accuracy where other methods are by balanced accuracy: say "
                    "by what to compare them, with --metric"
                )
            if self.settings.get("holdout") is None:  # all learn from the same rows
                self.settings["holdout"] = HOLDOUT_OF_NETWORKS
        if len(self.methods) > 1 and self.settings.get("holdout") is None:
            from cotune.run.settings import REFERENCES

            if not set(REFERENCES).isdisjoint(self.methods):  # these set none aside by default
                self.settings["holdout"] = 0.0
        known = {o for method in self.methods for o in OPTIONS if takes(method, o)} | {"max_rounds"}
        for option in self.options.keys() - known:
            spelling = option.replace("_", "-")
            raise UsageError(f"--{spelling} is not an option of {', '.join(self.methods)}: omit it")

    def options_of(self, method: str) -> dict[str, Any]:
        """Those of the given options that the method understands.

        `--max-rounds` limits the search, unless the method has a meaning of its own for it.
        """
        from cotune.methods import takes

        own = {name: value for name, value in self.options.items() if takes(method, name)}
        if "max_rounds" in self.options.keys() - own.keys():
            own["rounds"] = self.options["max_rounds"]
        return own

    def start(self, method: str, folder: Path, quiet: bool) -> Outcome:
        """Make the federation and run one method over it from the beginning."""
        import cotune

        with discarded_if_refused(folder), self._opened(folder / "parties") as federation:
            return cotune.tune(
                federation,
                method,
                run=folder,
                progress=False if quiet else None,
                **self.settings,
                **self.options_of(method),
            )

    def _opened(self, state: Path) -> Federation:
        """The federation: a simulation whose parties remember in `state`, or the real one."""
        import cotune

        if "kit" in self.federation:
            return cotune.connect(**{k: v for k, v in self.federation.items() if k != "seed"})
        data = self.data[0] if len(self.data) == 1 else self.data
        return cotune.simulate(data, state=state, **self.federation)

    def compare(self, folder: Path, quiet: bool) -> list[Outcome]:
        """Every method's outcome: as it was, resumed, or from a run that is started now."""
        return [
            resumed(folder / method, quiet)
            if (folder / method / "run.json").exists()
            else self.start(method, folder / method, quiet)
            for method in self.methods
        ]

    def save(self, folder: Path) -> None:
        """Write the plan down, so that a comparison can be resumed whichever run it died in."""
        for name in ("run.json", COMPARISON):
            if (folder / name).exists():
                raise UsageError(
                    f"{folder} holds a run already: `cotune resume {folder}` goes on with it, "
                    "another --run starts a new one"
                )
        from cotune.files import make_folder, sealed, write
        from cotune.run.folder import unwritable

        try:
            make_folder(folder)
            write(folder / COMPARISON, sealed(self))
        except OSError as error:
            raise unwritable(folder, error) from error

    @classmethod
    def load(cls, folder: Path) -> Plan:
        from cotune.files import unsealed

        path = folder / COMPARISON
        fix = "restore it from a copy, or start a new comparison"
        try:
            return unsealed(path.read_bytes(), cls)
        except OSError as error:
            raise UsageError(f"{path} cannot be read ({error.strerror}): {fix}") from error
        except Malformed as error:
            raise UsageError(f"{path} cannot be read, {error}: {fix}") from error


@contextmanager
def discarded_if_refused(folder: Path) -> Iterator[None]:
    """What was written for input that turned out to be wrong is nothing to resume: remove it.

    What has a finished round of a search is never removed, whatever the error.
    """
    from cotune.run.folder import has_begun

    before = set(folder.iterdir()) if folder.is_dir() else None
    try:
        yield
    except (UsageError, DataError) as error:
        if has_begun(folder):
            raise type(error)(f"{error}; `cotune resume {folder}` resumes the run") from error
        if before is None:
            shutil.rmtree(folder, ignore_errors=True)
        for file in set(folder.iterdir()) - before if before is not None else ():
            shutil.rmtree(file) if file.is_dir() else file.unlink()
        raise


def resumed(folder: Path, quiet: bool, train: bool = True) -> Outcome:
    """The outcome of a run that was begun before."""
    import cotune

    return cotune.resume(folder, train=train, progress=False if quiet else None)
