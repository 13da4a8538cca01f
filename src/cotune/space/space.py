"""The search space: named domains, some of them conditional, in the scale that tuning works in.

>>> space = Space({
...     "max_iter": (10, 200),
...     "learning_rate": (1e-3, 1.0, "log"),
...     "subsample": (0.6, 1.0, 0.1),
...     "kernel": ["rbf", "linear"],
...     "solver": "adam",
...     "gamma": when((1e-5, 10.0, "log"), kernel="rbf"),
... })
>>> space.clip({"learning_rate": 0, "kernel": "linear"})
{'max_iter': 105, 'learning_rate': 0.001, 'subsample': 0.8, 'kernel': 'linear', 'solver': 'adam'}
>>> space.columns
['max_iter', 'learning_rate', 'subsample', 'kernel=rbf', 'kernel=linear', 'gamma']
>>> round(space["learning_rate"].at(0.5), 4)
0.0316
>>> space.validate({"max_iter": 500})
Traceback (most recent call last):
cotune.errors.UsageError: parameter 'max_iter' must be a whole number from 10 to 200, not 500
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from cotune.errors import UsageError, choices
from cotune.space.domain import Category, Domain, Fixed, Real, Scalar, domain_of, plain, same

if TYPE_CHECKING:
    import optuna

Params = dict[str, Any]


@dataclass(frozen=True)
class When:
    """A domain that only counts while earlier parameters have certain values."""

    domain: Any
    conditions: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"when({self.domain!r}, {_conditions_text(self.conditions)})"


def when(domain: Any, /, **conditions: Any) -> When:
    """Make a parameter conditional: each condition is a value of an earlier parameter, or a list.

    >>> when((2, 5), kernel=["poly", "rbf"])
    when((2, 5), kernel=['poly', 'rbf'])
    """
    if not conditions:
        raise UsageError("when() needs a condition, as in when((2, 5), kernel='poly')")
    return When(domain, conditions)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class Space:
    """Named domains, written as a literal; immutable, and equal to what is written alike.

    A domain is `(low, high)`, `(low, high, "log")` or `(low, high, step)` (whole numbers if all of
    them are), a list of categories, one fixed value, an Optuna distribution, or `when(...)` around
    any of these. The order counts: a condition speaks of earlier parameters, and the encoded
    columns follow it.

    A configuration holds exactly the active parameters. Methods that take one expect it valid;
    what comes from elsewhere goes through `validate` or `clip` first.
    """

    _domains: dict[str, Domain]
    _conditions: dict[str, dict[str, tuple[Scalar, ...]]]

    def __init__(self, literal: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_domains", {})
        object.__setattr__(self, "_conditions", {})
        for name, written in literal.items():
            with _naming(name):
                guarded = written if isinstance(written, When) else When(written, {})
                self._conditions[name] = {
                    parent: self._accepted(parent, values)
                    for parent, values in guarded.conditions.items()
                }
                self._domains[name] = domain_of(guarded.domain)

    def _accepted(self, parent: str, values: Any) -> tuple[Scalar, ...]:
        """The values of a condition, as the parent spells them."""
        if parent not in self._domains:
            raise UsageError(f"depends on an {choices(parent, 'earlier parameter', self)}")
        if isinstance(self._domains[parent], Real):
            raise UsageError(f"cannot depend on {parent!r}: it has no categories or whole numbers")
        listed = values if isinstance(values, list) else [values]
        if not listed:
            raise UsageError(f"depends on {parent!r}, but on none of its values")
        try:
            return tuple(self._domains[parent].normalise(value) for value in listed)
        except UsageError as error:
            raise UsageError(f"depends on {parent!r}, which {error}") from None

    @property
    def names(self) -> list[str]:
        return list(self._domains)

    def __contains__(self, name: object) -> bool:
        return name in self._domains

    def __len__(self) -> int:
        return len(self._domains)

    def __iter__(self) -> Iterator[str]:
        return iter(self._domains)

    def __getitem__(self, name: str) -> Domain:
        self._check_names([name])
        return self._domains[name]

    def __repr__(self) -> str:
        return f"Space({ {name: self._written(name) for name in self} })"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Space) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def _written(self, name: str) -> Any:
        literal = self._domains[name].literal
        return When(literal, self._conditions[name]) if self._conditions[name] else literal

    def _check_names(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._domains:
                raise UsageError(choices(name, "parameter", self))

    def _met(self, name: str, chosen: Params) -> bool:
        """Whether the parameter is active, once all before it are chosen."""
        return all(
            parent in chosen and chosen[parent] in accepted
            for parent, accepted in self._conditions[name].items()
        )

    def _walk(self, choose: Callable[[str, Domain], Any]) -> Params:
        """A configuration, chosen parameter by parameter, leaving out what is inactive."""
        chosen: Params = {}
        for name, domain in self._domains.items():
            if self._met(name, chosen):
                chosen[name] = choose(name, domain)
        return chosen

    def active(self, params: Mapping[str, Any]) -> list[str]:
        """The parameters whose conditions these values meet.

        Fixed parameters have their value anyway; any other that is not given meets no condition.
        """

        def value(name: str, domain: Domain) -> Any:
            unknown = domain.value if isinstance(domain, Fixed) else math.nan  # equal to nothing
            return params.get(name, unknown)

        return list(self._walk(value))

    def validate(self, params: Mapping[str, Any]) -> Params:
        """The configuration with every value in its own type, or an error that names the culprit.

        Fixed parameters may be left out: they are filled in.

        >>> Space({"epochs": (1, 5), "solver": "adam"}).validate({"epochs": 3.0})
        {'epochs': 3, 'solver': 'adam'}
        """
        self._check_names(params)

        def value(name: str, domain: Domain) -> Any:
            if name not in params and not isinstance(domain, Fixed):
                raise UsageError(f"parameter {name!r} is missing: give {domain.allowed}")
            with _naming(name):
                return domain.normalise(params.get(name, domain.default))

        valid = self._walk(value)
        for name in params:
            if name not in valid:
                raise self._inactive(name)
        return valid

    def _inactive(self, name: str) -> UsageError:
        conditions = _conditions_text(self._conditions[name])
        return UsageError(f"parameter {name!r} is given, but only counts when {conditions}")

    def clip(self, params: Mapping[str, Any]) -> Params:
        """The nearest configuration of this space; what is missing gets the centre, or the first.

        >>> Space({"l2": (1e-4, 1.0, "log"), "depth": (1, 9)}).clip({"l2": 0, "width": 7})
        {'l2': 0.0001, 'depth': 5}
        """
        return self._walk(
            lambda name, domain: domain.nearest(params[name]) if name in params else domain.default
        )

    def fix(self, **values: Any) -> Space:
        """The space in which these parameters have one value; what that rules out is gone.

        The value is one of the parameter's domain; that of one which was fixed is any other.

        >>> Space({"kernel": ["rbf", "linear"], "gamma": when((0.1, 9.0), kernel="rbf")}).fix(
        ...     kernel="linear"
        ... )
        Space({'kernel': 'linear'})
        """
        self._check_names(values)
        kept: dict[str, When] = {}
        for name in self:
            conditions = {
                parent: _reachable(kept.get(parent), accepted)
                for parent, accepted in self._conditions[name].items()
            }
            if all(conditions.values()):
                kept[name] = When(self._fixed(name, values), conditions)
            elif name in values:
                raise self._inactive(name)
        return Space(kept)

    def _fixed(self, name: str, values: Mapping[str, Any]) -> Domain:
        domain = self._domains[name]
        if name not in values:
            return domain
        with _naming(name):
            if isinstance(domain, Fixed):
                return Fixed(plain(values[name]))
            return Fixed(domain.normalise(values[name]))

    def sample(self, rng: np.random.Generator) -> Params:
        """A uniform draw, in the transformed scale."""
        return self._walk(lambda name, domain: domain.at(rng.random()))

    def sobol(self, n: int, seed: int) -> list[Params]:
        """The first `n` points of a scrambled Sobol sequence with a dimension per free parameter.

        Inactive parameters use up their dimension, and small spaces repeat configurations.
        """
        from scipy.stats import qmc

        free = [name for name, domain in self._domains.items() if domain.width]
        if not n or not free:
            return [self.clip({}) for _ in range(n)]
        exponent = (n - 1).bit_length()
        cube = qmc.Sobol(len(free), scramble=True, seed=seed).random_base2(exponent)[:n]
        return [self._at(dict(zip(free, row, strict=True))) for row in cube.tolist()]

    def _at(self, units: Mapping[str, float]) -> Params:
        return self._walk(lambda name, domain: domain.at(units.get(name, 0.5)))

    def grid(self, resolution: int) -> list[Params]:
        """All combinations of `resolution` values of every number and all categories.

        >>> Space({"kernel": ["rbf", "poly"], "degree": when((1, 9), kernel="poly")}).grid(2)
        [{'kernel': 'rbf'}, {'kernel': 'poly', 'degree': 1}, {'kernel': 'poly', 'degree': 9}]
        """
        return list(self._grid(resolution))

    def finest_grid(self, most: int) -> list[Params]:
        """The grid of the highest resolution with at most `most` points; empty if there is none."""

        def size(resolution: int) -> int:
            return sum(1 for _ in islice(self._grid(resolution), most + 1))

        resolution = bisect_right(range(1, most + 1), most, key=size)
        return self.grid(resolution) if resolution else []

    def _grid(self, resolution: int) -> Iterator[Params]:
        configurations: Iterator[Params] = iter([{}])
        for name, domain in self._domains.items():
            configurations = self._branch(configurations, name, domain.points(resolution))
        return configurations

    def _branch(
        self, configurations: Iterator[Params], name: str, values: Sequence[Any]
    ) -> Iterator[Params]:
        for chosen in configurations:
            if self._met(name, chosen):
                for value in values:
                    yield {**chosen, name: value}
            else:
                yield chosen

    @property
    def columns(self) -> list[str]:
        """The names of the encoded columns."""
        return [column for name in self for column in self._domains[name].columns(name)]

    def encode(self, params: Mapping[str, Any]) -> np.ndarray:
        """The configuration as a point of the unit cube; see `encode_many`."""
        row: np.ndarray = self.encode_many([params])[0]
        return row

    def encode_many(self, configurations: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """One row per configuration: numbers in the transformed scale, categories one-hot.

        Fixed parameters have no column. Inactive ones are 0.5, or all zeros if categorical.
        """
        blocks = [np.empty((len(configurations), 0))]
        for name, domain in self._domains.items():
            rows = [row for row, params in enumerate(configurations) if name in params]
            block = np.full((len(configurations), domain.width), domain.blank)
            with _naming(name):
                block[rows] = domain.encode([configurations[row][name] for row in rows])
            blocks.append(block)
        return np.hstack(blocks)

    def decode(self, vector: np.ndarray) -> Params:
        """The configuration at, or nearest to, a point of the unit cube; undoes `encode`."""
        widths = [domain.width for domain in self._domains.values()]
        if np.shape(vector) != (sum(widths),):
            raise UsageError(f"a vector of shape {np.shape(vector)} is not {sum(widths)} columns")
        blocks = dict(zip(self, np.split(np.asarray(vector), np.cumsum(widths)), strict=False))
        return self._walk(lambda name, domain: domain.decode(blocks[name]))

    def perturb(
        self, params: Mapping[str, Any], rng: np.random.Generator, epsilon: float = 0.1
    ) -> Params:
        """A draw from the neighbourhood of a configuration: FedEx's local perturbation, section 3.

        In the transformed scale, a continuous value c of [a, b] moves uniformly within
        c ± (b - a)epsilon, and a value of {a, ..., b} uniformly within
        {c - floor((b - a)epsilon), ..., c + ceil((b - a)epsilon)}, counted in steps. What falls
        outside is moved to the end of the range, as the authors' code does. Whole numbers on a log
        scale move as continuous ones and are rounded. The paper has no categories: here they are
        drawn anew with probability epsilon. A parameter that becomes active is sampled.
        """

        def value(name: str, domain: Domain) -> Any:
            if name not in params:
                return domain.at(rng.random())
            return domain.perturb(params[name], rng, epsilon)

        return self._walk(value)

    def distance(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
        """FLoRA's distance between configurations, equation C.4.

        The Euclidean norm over the numbers in the unit cube, plus the shortest path in the product
        of the complete graphs over the categories: the number of categories that differ.

        A parameter that is active in only one of the two counts 1 in its own part. That is as far
        as two of its values can be apart, so "inactive" is one more point of its domain, the
        triangle inequality holds for each parameter, and thus for the whole.
        """
        squares = hops = 0.0
        for name, domain in self._domains.items():
            if isinstance(domain, Fixed) or (name not in one and name not in other):
                continue
            both = name in one and name in other
            gap = domain.gap(one[name], other[name]) if both else 1.0
            if isinstance(domain, Category):
                hops += gap
            else:
                squares += gap**2
        return math.sqrt(squares) + hops

    def suggest(self, trial: optuna.Trial) -> Params:
        """The configuration that an Optuna trial proposes, with the fixed values."""
        return self._walk(lambda name, domain: domain.suggest(trial, name))

    def to_json(self) -> dict[str, Any]:
        """The space as plain JSON values; the order of the keys is part of it.

        >>> Space({"C": (0.01, 1.0, "log")}).to_json()
        {'C': {'type': 'float', 'low': 0.01, 'high': 1.0, 'log': True, 'step': None, 'when': {}}}
        """
        return {
            name: {**msgspec.to_builtins(domain), "when": self._listed_conditions(name)}
            for name, domain in self._domains.items()
        }

    def _listed_conditions(self, name: str) -> dict[str, list[Scalar]]:
        return {parent: list(accepted) for parent, accepted in self._conditions[name].items()}

    @classmethod
    def from_json(cls, obj: Any) -> Space:
        """The space that `to_json` described."""
        try:
            entries = msgspec.convert(obj, dict[str, dict[str, Any]])
        except msgspec.ValidationError as error:
            raise UsageError(f"this is no search space: {error}") from None
        return cls({name: _from_entry(name, entry) for name, entry in entries.items()})


def _from_entry(name: str, entry: dict[str, Any]) -> When:
    described = {key: value for key, value in entry.items() if key != "when"}
    with _naming(name):
        domain = msgspec.convert(described, Domain)
        conditions = msgspec.convert(entry.get("when", {}), dict[str, list[Scalar]])
    return When(domain, conditions)


def _reachable(parent: When | None, accepted: tuple[Scalar, ...]) -> list[Scalar]:
    """The values of a condition that its parent can still take."""
    if parent is None:
        return []
    if isinstance(parent.domain, Fixed):
        return [value for value in accepted if same(value, parent.domain.value)]
    return list(accepted)


def _conditions_text(conditions: Mapping[str, Any]) -> str:
    def text(accepted: Any) -> str:
        listed = list(accepted) if isinstance(accepted, list | tuple) else [accepted]
        return repr(listed[0] if len(listed) == 1 else listed)

    return ", ".join(f"{parent}={text(accepted)}" for parent, accepted in conditions.items())


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Begin the sentence of an error about one domain with the parameter's name."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"parameter {name!r} {error}") from None
    except msgspec.ValidationError as error:
        raise UsageError(f"parameter {name!r}: {error}") from None
