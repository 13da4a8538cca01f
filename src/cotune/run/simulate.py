"""`simulate`: a federation of parties on this machine, made from one data set or several files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from cotune.coordinator.federation import Federation
from cotune.data.load import check_target, fingerprint, load, name_of, usual_target
from cotune.data.split import split as split_rows
from cotune.engines.local import LocalEngine
from cotune.errors import DataError, UsageError

if TYPE_CHECKING:
    import pandas as pd

    Source = str | Path | pd.DataFrame


def simulate(
    data: Source | Sequence[Source] | Mapping[str, Source],
    *,
    target: str = "target",
    parties: int | None = None,
    split: str | None = None,
    seed: int = 0,
    executor: Executor | None = None,
    processes: int | None = None,
    scratch: str | Path | None = None,
    state: str | Path | None = None,
    quorum: float = 0.5,
    timeout: float | None = None,
    smallest_cell: int = 1,
) -> Federation:
    """A federation on this machine, for trying methods and for research.

    Parameters
    ----------
    data
        A data frame, a file (CSV, TSV, Parquet, ARFF), `sklearn:digits`, `openml:40`, images in
        an `.npz` file, `text:FILE` (see `cotune.data.load.load`); it is split over the parties.
        Or several of these, one per party: a list (parties are named after the files) or a
        mapping from party names.
    target
        The column to predict; `label` of an `.npz` file and `next` of a text unless another is
        named.
    parties
        How many; 3 by default, or as many as there are files or values (`by:COLUMN`).
    split
        `iid` (default), `dirichlet:ALPHA` (label skew), `quantity:BETA`, `noise:BETA`
        (feature skew), `by:COLUMN` (say, a hospital's id).
    seed
        Of the split.
    executor, processes, scratch, state
        Where fits run, and where rows and memories lie: see `cotune.engines.local`.
    quorum, timeout
        See `Federation`.
    smallest_cell
        A category of fewer rows of a party is "other" there, and a party does not name a class of
        fewer. Real parties have 5.

    Examples
    --------
    >>> import cotune
    >>> with cotune.simulate("sklearn:wine", parties=4, split="dirichlet:1.0") as federation:
    ...     federation.parties
    ['party-1', 'party-2', 'party-3', 'party-4']
    """
    if not isinstance(seed, int) or seed < 0:
        raise UsageError(f"the seed is {seed!r}: give a whole number from 0 on")
    if not isinstance(smallest_cell, int) or smallest_cell < 1:
        raise UsageError(f"smallest_cell is {smallest_cell!r}: give a number of rows, 1 or more")
    if target == "target":
        target = _usual_target(data)
    tables = _tables(data, target, parties, split, seed)
    engine = LocalEngine(
        tables,
        target,
        executor=executor,
        processes=processes,
        scratch=None if scratch is None else Path(scratch),
        state=None if state is None else Path(state),
        smallest_cell=smallest_cell,
    )
    origin: dict[str, Any] = {
        "source": _written(data),
        "target": target,
        "parties": parties,
        "split": split,
        "seed": seed,
        "processes": processes,
        "quorum": quorum,
        "timeout": timeout,
        "smallest_cell": smallest_cell,
        "fingerprint": {name: fingerprint(table) for name, table in tables.items()},
    }
    return Federation(engine, quorum=quorum, timeout=timeout, origin=origin)


def again(origin: Mapping[str, Any], state: Path) -> Federation:
    """The federation that a run was started on: real parties, or a simulation on the same rows."""
    if origin.get("kit"):
        from cotune.engines.nvflare.engine import connect

        return connect(**origin)
    if not origin.get("source"):
        raise UsageError(
            "the run was not made from files or named data sets: resume it from Python with "
            "cotune.resume(run, federation)"
        )
    arguments = {k: v for k, v in origin.items() if k not in ("source", "fingerprint")}
    federation = simulate(origin["source"], state=state, **arguments)
    if federation.origin["fingerprint"] != origin["fingerprint"]:
        federation.close()
        raise DataError("the data has changed since the run was started: start a new run")
    return federation


def data_name(data: Source | Sequence[Source]) -> str:
    """A short name of the data for a run's folder."""
    first = data[0] if isinstance(data, Sequence) and not isinstance(data, str) else data
    return name_of(first)


def _tables(
    data: Source | Sequence[Source] | Mapping[str, Source],
    target: str,
    parties: int | None,
    split: str | None,
    seed: int,
) -> dict[str, pd.DataFrame]:
    sources = _one_per_party(data)
    if sources is None:
        by = (split or "").removeprefix("by:") if (split or "").startswith("by:") else None
        frame = load(_only(data), by)
        check_target(frame, target)
        count = 3 if parties is None and by is None else parties
        return split_rows(frame, target, count, split or "iid", seed)
    if split is not None:
        raise UsageError(f"there is nothing to split {split!r}: each file is one party's")
    if parties not in (None, len(sources)):
        raise UsageError(f"{len(sources)} files are {len(sources)} parties, not {parties}")
    return {name: load(source) for name, source in sources.items()}


def _usual_target(data: Source | Sequence[Source] | Mapping[str, Source]) -> str:
    sources = _one_per_party(data)
    first = _only(data) if sources is None else next(iter(sources.values()), "")
    return usual_target(first)


def _one_per_party(
    data: Source | Sequence[Source] | Mapping[str, Source],
) -> dict[str, Source] | None:
    """Sources by party name if there are several, None if one is to be split."""
    if isinstance(data, Mapping):
        return dict(data)
    if isinstance(data, str | Path) or not isinstance(data, Sequence):
        return None
    if len(data) == 1:
        return None
    names = [name_of(source) for source in data]
    if len(set(names)) < len(names):
        names = [f"{name}-{number}" for number, name in enumerate(names, start=1)]
    return dict(zip(names, data, strict=True))


def _only(data: Source | Sequence[Source] | Mapping[str, Source]) -> Source:
    """The source that is to be split, also out of a list of one."""
    alone = data[0] if isinstance(data, Sequence) and not isinstance(data, str) else data
    return cast("Source", alone)


def _written(data: Source | Sequence[Source] | Mapping[str, Source]) -> Any:
    """The source as it can be written to a run's record; None for data frames."""
    if isinstance(data, Mapping):
        written = {name: _written(source) for name, source in data.items()}
        return None if None in written.values() else written
    if isinstance(data, str | Path):
        scheme = "text:" if str(data).startswith("text:") else ""
        path = Path(str(data).removeprefix(scheme))
        return f"{scheme}{path.resolve()}" if path.exists() else str(data)
    if isinstance(data, Sequence):
        listed = [_written(source) for source in data]
        return None if None in listed else listed
    return None
