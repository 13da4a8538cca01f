"""One changed bit or byte in a file of a run, a model or a kit: an error in words, or no matter."""

from __future__ import annotations

import random
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import cotune
from cotune.cli.comparison import Plan
from cotune.coordinator.journal import Journal
from cotune.coordinator.ledger import Round
from cotune.errors import CotuneError
from cotune.model.model import Model
from cotune.party.memory import Memory
from cotune.protocol.wire import Cost, encode
from cotune.run.folder import read_record, unfinished
from cotune.run.outcome import Outcome
from tests.parts import iris, threads
from tests.soak import times

pytestmark = pytest.mark.soak
FRAME = iris(60)
QUICK: dict[str, Any] = {"learners": ["decision_tree"], "trials": 3, "folds": 2}
#: What can be done about it, or that another version made it.
HELP = ("restore", "again", "start a new", "version of cotune", "resume")


@contextmanager
def limit(seconds: float) -> Iterator[None]:
    """A loop without an end is an error that names it."""

    def stop(number: int, frame: object) -> None:
        raise TimeoutError(f"not ended after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def flipped(content: bytes, chance: random.Random) -> tuple[str, bytes]:
    """The content with one bit or one byte changed, and what that was."""
    place = chance.randrange(len(content))
    change = 1 << chance.randrange(8) if chance.random() < 0.5 else chance.randrange(1, 256)
    damaged = bytearray(content)
    damaged[place] ^= change
    return f"byte {place} ^ {change:#x}", bytes(damaged)


def survive(
    path: Path, read: Callable[[], Any], count: int, *, seconds: float = 20.0, fewest: float = 0.5
) -> None:
    """Damage the file so many times: what is read is the same, or there is an error in words.

    At least the share `fewest` must be noticed, or the test would show nothing.
    """
    content, expected, chance = path.read_bytes(), read(), random.Random(path.name)
    noticed = 0
    for _ in range(count):
        what, damaged = flipped(content, chance)
        path.write_bytes(damaged)
        try:
            with limit(seconds):
                found = read()
        except CotuneError as error:
            said, found = str(error), expected
        except BaseException as error:
            raise AssertionError(f"{path.name}, {what}: {error!r}") from error
        else:
            said = ""
        assert found == expected, f"{path.name}, {what}: read as something else"
        if said:
            noticed += 1
            assert any(word in said for word in HELP), (what, said)
            assert "there is no" not in said, (what, said)
            assert "\n" not in said, (what, said)
    path.write_bytes(content)
    assert read() == expected
    assert noticed >= fewest * count


def simulated(folder: Path):
    return cotune.simulate(FRAME, executor=threads(), state=folder / "parties")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("damage") / "run"
    with simulated(folder) as federation:
        cotune.tune(federation, run=folder, **QUICK)
    return folder


@pytest.fixture
def run(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def contents(path: Path) -> Callable[[], Any]:
    """A function that reads all that a run would of the journal."""
    with sqlite3.connect(path) as database:
        asked = database.execute("SELECT number, request FROM rounds").fetchall()
        named = database.execute("SELECT since, name FROM parts").fetchall()

    def read() -> Any:
        with closing(Journal(path)) as journal:
            recorded = [encode(journal.recorded(number, request)) for number, request in asked]
            numbers = range(len(asked) + 1)
            restored = [journal.restored(n) for n in numbers if journal.computed(n)]
            parts = [journal.part(since, name) for since, name in named]
            states = [(list(map(encode, rounds)), state) for rounds, state in restored]
            return recorded, states, parts, journal.noises(), len(journal)

    return read


def test_a_damaged_journal(run):
    path = run / "journal.sqlite"
    survive(path, contents(path), times(150, 2000), fewest=0.15)


def test_a_damaged_journal_of_large_parts_and_noises(tmp_path):
    path = tmp_path / "journal.sqlite"
    journal, chance = Journal(path), random.Random(0)
    for number in range(1, 6):
        entry = Round(number, "task", "sum", ("a", "b"), 1, 2, 0.5, Cost(3, 0.25), "all")
        journal.record(entry, f"question {number}")
        journal.note_noise(float(number))
    for number in range(6, 9):
        entry = Round(number, "task", "sum", ("a", "b"), 1, 2, 0.5, Cost(3, 0.25), "all")
        parts = {f"arm-{number}": chance.randbytes(9_000), "arm-1": chance.randbytes(3_000)}
        journal.checkpoint(5, [entry], chance.randbytes(10_000), parts)
    journal.close()
    survive(path, contents(path), times(150, 2000), fewest=0.15)


def test_a_damaged_journal_resumes_to_the_same_outcome_or_not_at_all(run, finished):
    """As above, by a whole resumed run, with its training."""
    whole = Outcome.load(finished)
    path = run / "journal.sqlite"

    def read() -> Any:
        (run / "outcome.json").unlink(missing_ok=True)
        shutil.rmtree(run / "model", ignore_errors=True)
        unfinished(run)
        with simulated(run) as federation:
            outcome = cotune.resume(run, federation)
        return outcome.trials, outcome.model.predict_proba(FRAME).to_numpy().tobytes()

    assert read()[0] == whole.trials
    survive(path, read, times(3, 2000), fewest=0.0)


def test_a_damaged_record(run):
    survive(run / "run.json", lambda: read_record(run), times(200, 2000))


def test_a_damaged_outcome(run):
    survive(run / "outcome.json", lambda: Outcome.load(run).encoded(), times(200, 2000))


def test_a_damaged_plan_of_a_comparison(tmp_path):
    Plan(["a.csv", "b.csv"], ["dash", "flora"], {"seed": 3}, QUICK, {"keep": 0.5}).save(tmp_path)
    survive(tmp_path / "compare.json", lambda: Plan.load(tmp_path), times(200, 2000))


def test_a_damaged_memory_forgets_the_line_and_nothing_else(run):
    for path in (run / "parties").rglob("*.jsonl"):
        known = vars(Memory(path))["_known"]

        def read(path: Path = path, known: Any = known) -> bool:
            found = vars(Memory(path))["_known"]
            return all(
                batch == known[key][fold] for key in found for fold, batch in found[key].items()
            )

        survive(path, read, times(100, 700), fewest=0.0)


@pytest.fixture(scope="module", params=["logistic_regression", "mlp", "hgb", "random_forest"])
def model(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    small = {"hgb": {"max_iter": 10}, "random_forest": {"n_estimators": 20}}
    with simulated(folder) as federation:
        fixed = {request.param: small[request.param]} if request.param in small else {}
        outcome = cotune.tune(
            federation, "defaults", learners=[request.param], folds=2, fixed=fixed
        )
    outcome.model.save(folder / "model")
    return folder / "model"


@pytest.mark.parametrize("manifest", [True, False])
def test_a_damaged_model(model, manifest):
    """Its description, or the estimator itself."""

    def read() -> Any:
        found = Model.load(model)
        predicted = found.predict_proba(FRAME).to_numpy().tobytes()
        told = found.learner, found.params, found.schema, found.scaling, found.metric, found.about
        return told, predicted

    path = model / "model.json"
    if not manifest:
        path = next(file for file in model.iterdir() if file != path)
    survive(path, read, times(30, 500))


def test_a_damaged_kit(tmp_path):
    pytest.importorskip("nvflare")
    from cotune.engines.nvflare import kits

    zips = kits.create(tmp_path / "kits", "localhost:8002", ["north", "south"], "anna")
    shutil.unpack_archive(next(path for path in zips if path.stem == "north"), tmp_path)
    kit = tmp_path / "north"
    for path in kit.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    survive(kit / "cotune.json", lambda: kits.open_kit(kit, "site"), times(100, 2000))
