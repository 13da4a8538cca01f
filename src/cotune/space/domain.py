"""The values that one hyperparameter may take: an interval, whole numbers, categories, one value.

The four kinds answer the same calls, so that a `Space` need not ask which one it holds. Their
errors are the end of a sentence, "must be ...", that the space begins with the parameter's name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import msgspec
import numpy as np

from cotune.errors import UsageError

if TYPE_CHECKING:
    import optuna

Scalar: TypeAlias = bool | int | float | str | None

#: Beyond, a whole number would not survive its way through the unit cube and back.
LARGEST = 2**40


class Number(msgspec.Struct, frozen=True, tag_field="type", forbid_unknown_fields=True):
    """What the two numeric kinds share: an interval, measured in its transformed scale.

    That scale is the logarithm where `log`, else the values themselves. Values that lie on a grid
    own a cell each, half a step to either side, so that a uniform draw from the unit interval is
    uniform over them; the ends of a continuous interval are 0 and 1.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None

    #: How many columns the unit cube gives it.
    width: ClassVar[int] = 1
    #: What these columns hold while the parameter is inactive.
    blank: ClassVar[float] = 0.5
    #: The step of an interval that was written without one.
    finest: ClassVar[float | None] = None

    def __post_init__(self) -> None:
        if not -math.inf < self.low < self.high < math.inf:
            raise UsageError(f"needs finite bounds, low below high, not {(self.low, self.high)}")
        if self.log and self.low <= 0:
            raise UsageError(f"needs low above 0 on a log scale, not {self.low}")
        if self.log and self.step != self.finest:
            raise UsageError(f"takes a log scale or a step of {self.step}, not both")
        if self.step is not None:
            self._check_step(self.step)
        start, end = self.bounds
        if not 0 < end - start < math.inf:
            raise UsageError(f"has bounds too close or too far apart: {(self.low, self.high)}")

    def _check_step(self, step: float) -> None:
        if not 0 < step < math.inf:
            raise UsageError(f"needs a step above 0, not {step}")
        steps = (_decimal(self.high) - _decimal(self.low)) / _decimal(step)
        if steps != steps.to_integral_value():
            raise UsageError(f"needs a step that divides {self.low} to {self.high}, not {step}")
        if steps > LARGEST:
            raise UsageError(f"has more than {LARGEST} values: take a larger step than {step}")

    @property
    def cell(self) -> float:
        """The distance between neighbouring values; 0 in a continuous interval."""
        return self.step or 0

    @property
    def bounds(self) -> tuple[float, float]:
        """The ends in the transformed scale, where the unit interval begins and ends."""
        return self._forward(self.low - self.cell / 2), self._forward(self.high + self.cell / 2)

    @property
    def default(self) -> float:
        return self.at(0.5)

    @property
    def literal(self) -> tuple[float | str, ...]:
        if self.log:
            return (self.low, self.high, "log")
        if self.step is not None and self.step != self.finest:
            return (self.low, self.high, self.step)
        return (self.low, self.high)

    @property
    def allowed(self) -> str:
        kind = "a whole number" if isinstance(self, Integer) else "a number"
        steps = f" in steps of {self.step}" if self.step != self.finest else ""
        return f"{kind} from {self.low} to {self.high}{steps}"

    def normalise(self, value: object) -> float:
        """The value in its own type and exactly on its step; an error if it is not allowed.

        What misses a bound by its last digits is at the bound: 10 to the power of -5 is
        9.999999999999999e-06 on some processors.
        """
        number = _number(value)
        nearest = self.nearest(number)
        slack = 1e-8 * self.cell + 1e-12 * abs(nearest)
        if number is not None and nearest - slack <= number <= nearest + slack:
            return nearest
        raise UsageError(f"must be {self.allowed}, not {value!r}")

    def nearest(self, value: object) -> float:
        """The allowed value closest to this one; the centre if it is no number.

        None is the libraries' word for "no limit": the upper end is closest to that.
        """
        number = math.inf if value is None else _number(value)
        if number is None:
            return self.default
        return self.snap(min(max(number, self.low), self.high))

    def snap(self, number: float) -> float:
        """The value on the step, for a number between low and high.

        In decimals, as the step was written: 0.1 in three steps is 0.3.
        """
        if self.step is None:
            return float(number)
        return float(_decimal(self.low) + self._steps_to(number) * _decimal(self.step))

    def _steps_to(self, number: float) -> int:
        return math.floor((number - self.low) / self.cell + 0.5)

    def at(self, unit: float) -> float:
        """The value at this place of the unit interval."""
        start, end = self.bounds
        return self.nearest(self._back(start + unit * (end - start)))

    def points(self, resolution: int) -> list[float]:
        """Distinct values, evenly spread from end to end; the centre if only one is wanted."""
        units = np.linspace(0, 1, resolution).tolist() if resolution > 1 else [0.5]
        return list(dict.fromkeys(self.at(unit) for unit in units))

    def columns(self, name: str) -> list[str]:
        return [name]

    def encode(self, values: Sequence[float]) -> np.ndarray:
        start, end = self.bounds
        numbers = np.array(values, dtype=float)
        places = np.log(numbers) if self.log else numbers
        return ((places - start) / (end - start)).reshape(-1, 1)

    def decode(self, columns: np.ndarray) -> float:
        return self.at(float(columns[0]))

    def gap(self, one: float, other: float) -> float:
        """How far apart two values are, in the unit interval."""
        places = self.encode([one, other])
        return float(abs(places[0, 0] - places[1, 0]))

    def perturb(self, value: float, rng: np.random.Generator, epsilon: float) -> float:
        if self.cell and not self.log:
            return self._perturb_steps(value, rng, epsilon)
        start, end = self._forward(self.low), self._forward(self.high)
        reach = (end - start) * epsilon
        place = self._forward(value) + rng.uniform(-reach, reach)
        return self.nearest(self._back(min(max(place, start), end)))

    def _perturb_steps(self, value: float, rng: np.random.Generator, epsilon: float) -> float:
        # Rounded because 70 * 0.1 is 7.000000000000001, whose ceiling is one step too far.
        reach = round(self._steps_to(self.high) * epsilon, 9)
        steps = int(rng.integers(-math.floor(reach), math.ceil(reach), endpoint=True))
        return self.nearest(value + steps * self.cell)

    def _forward(self, number: float) -> float:
        return math.log(number) if self.log else number

    def _back(self, place: float) -> float:
        return math.exp(place) if self.log else place


class Real(Number, frozen=True, tag="float", forbid_unknown_fields=True):
    """Numbers from low to high, all of them or those on a step."""

    def suggest(self, trial: optuna.Trial, name: str) -> float:
        return self.nearest(
            trial.suggest_float(name, self.low, self.high, step=self.step, log=self.log)
        )


class Integer(Number, frozen=True, tag="int", forbid_unknown_fields=True):
    """Whole numbers from low to high, all of them or those on a step."""

    low: int
    high: int
    log: bool = False
    step: int = 1

    finest: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if max(abs(self.low), abs(self.high)) > LARGEST:
            raise UsageError(f"needs whole numbers between -{LARGEST} and {LARGEST}")
        super().__post_init__()

    def snap(self, number: float) -> int:
        return self.low + self._steps_to(number) * self.step

    def suggest(self, trial: optuna.Trial, name: str) -> int:
        return trial.suggest_int(name, self.low, self.high, step=self.step, log=self.log)


class Category(
    msgspec.Struct, frozen=True, tag_field="type", tag="categorical", forbid_unknown_fields=True
):
    """One of several values without an order."""

    choices: tuple[Scalar, ...]

    blank: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        for choice in self.choices:
            _check_scalar(choice)
        if not self.choices or len(set(self.choices)) < len(self.choices):
            raise UsageError(f"needs one or more distinct categories, not {self.literal}")

    @property
    def width(self) -> int:
        return len(self.choices)

    @property
    def default(self) -> Scalar:
        return self.choices[0]

    @property
    def literal(self) -> list[Scalar]:
        return list(self.choices)

    @property
    def allowed(self) -> str:
        return "one of " + ", ".join(map(repr, self.choices))

    def position(self, value: object) -> int:
        for position, choice in enumerate(self.choices):
            if same(choice, value):
                return position
        raise UsageError(f"must be {self.allowed}, not {value!r}")

    def normalise(self, value: object) -> Scalar:
        return self.choices[self.position(value)]

    def nearest(self, value: object) -> Scalar:
        return next((choice for choice in self.choices if same(choice, value)), self.default)

    def at(self, unit: float) -> Scalar:
        return self.choices[min(int(unit * self.width), self.width - 1)]

    def points(self, resolution: int) -> list[Scalar]:
        return list(self.choices)

    def columns(self, name: str) -> list[str]:
        return [f"{name}={choice}" for choice in self.choices]

    def encode(self, values: Sequence[Scalar]) -> np.ndarray:
        return np.eye(self.width)[[self.position(value) for value in values]]

    def decode(self, columns: np.ndarray) -> Scalar:
        return self.choices[int(np.argmax(columns))]

    def gap(self, one: Scalar, other: Scalar) -> float:
        """The hops between two nodes of the complete graph over the categories."""
        return float(not same(one, other))

    def perturb(self, value: Scalar, rng: np.random.Generator, epsilon: float) -> Scalar:
        return self.at(rng.random()) if rng.random() < epsilon else value

    def suggest(self, trial: optuna.Trial, name: str) -> Scalar:
        chosen: Scalar = trial.suggest_categorical(name, self.choices)
        return chosen


class Fixed(msgspec.Struct, frozen=True, tag_field="type", tag="fixed", forbid_unknown_fields=True):
    """A single value: part of every configuration, but of no search."""

    value: Scalar

    width: ClassVar[int] = 0
    blank: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        _check_scalar(self.value)

    @property
    def default(self) -> Scalar:
        return self.value

    @property
    def literal(self) -> Scalar:
        return self.value

    @property
    def allowed(self) -> str:
        return repr(self.value)

    def normalise(self, value: object) -> Scalar:
        if same(self.value, value):
            return self.value
        raise UsageError(f"must be {self.allowed}, not {value!r}")

    def nearest(self, value: object) -> Scalar:
        return self.value

    def at(self, unit: float) -> Scalar:
        return self.value

    def points(self, resolution: int) -> list[Scalar]:
        return [self.value]

    def columns(self, name: str) -> list[str]:
        return []

    def encode(self, values: Sequence[Scalar]) -> np.ndarray:
        return np.empty((len(values), 0))

    def decode(self, columns: np.ndarray) -> Scalar:
        return self.value

    def gap(self, one: Scalar, other: Scalar) -> float:
        return 0.0

    def perturb(self, value: Scalar, rng: np.random.Generator, epsilon: float) -> Scalar:
        return self.value

    def suggest(self, trial: optuna.Trial, name: str) -> Scalar:
        return self.value


Domain: TypeAlias = Real | Integer | Category | Fixed


def domain_of(written: object) -> Domain:
    """The domain that a literal means, or an Optuna distribution.

    >>> domain_of((1, 100, "log"))
    Integer(low=1, high=100, log=True, step=1)
    >>> domain_of(["rbf", "linear"])
    Category(choices=('rbf', 'linear'))
    """
    match written:
        case Real() | Integer() | Category() | Fixed():
            return written
        case tuple():
            return _interval(written)
        case list():
            return Category(tuple(plain(choice) for choice in written))
        case None | bool() | int() | float() | str() | np.generic():
            return Fixed(plain(written))
    return _from_optuna(written)


def _interval(written: tuple[Any, ...]) -> Domain:
    items = [plain(item) for item in written]
    log = items[2:] == ["log"]
    numbers = items[:2] if log else items
    if len(written) not in (2, 3) or any(_number(number) is None for number in numbers):
        forms = "(low, high), (low, high, 'log') or (low, high, step) with numbers"
        raise UsageError(f"must be {forms}, not {written!r}")
    if all(isinstance(number, int) for number in numbers):
        low, high, *step = numbers
        return Integer(low, high, log, *step)
    low, high, *step = map(float, numbers)
    return Real(low, high, log, *step)


def _from_optuna(distribution: object) -> Domain:
    from optuna import distributions

    match distribution:
        case distributions.CategoricalDistribution(choices=choices):
            return Category(tuple(choices))
        case distributions.FloatDistribution(low=low) | distributions.IntDistribution(low=low) if (
            distribution.single()
        ):
            return Fixed(low)
        case distributions.FloatDistribution(low=low, high=high, log=log, step=step):
            return Real(low, high, log, step)
        case distributions.IntDistribution(low=low, high=high, log=log, step=step):
            return Integer(low, high, log, step)
    kinds = "a tuple, a list, a single value, an Optuna distribution or when(...)"
    raise UsageError(f"must be {kinds}, not {distribution!r}")


def plain(value: Any) -> Any:
    """The value without numpy's wrapping."""
    return value.item() if isinstance(value, np.generic) else value


def same(one: object, other: object) -> bool:
    """Whether two scalars are equal, where True is not 1."""
    one, other = plain(one), plain(other)
    if not isinstance(other, bool | int | float | str | None):
        return False
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _check_scalar(value: object) -> None:
    if not isinstance(value, bool | int | float | str | None):
        raise UsageError(f"takes texts, numbers, True, False and None, not {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"takes finite numbers only, not {value!r}")


def _number(value: object) -> float | None:
    """The value if it is a number, and None if it is a truth value, NaN or anything else."""
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return None
    return value


def _decimal(number: float) -> Decimal:
    return Decimal(repr(number))
