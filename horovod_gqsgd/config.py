"""Configuration: the parameters of Global-QSGD, validated, immutable and comparable."""

import dataclasses
import hashlib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from horovod_gqsgd import __version__
from horovod_gqsgd.exponential import Levels
from horovod_gqsgd.linear import LANES, level_count
from horovod_gqsgd.reductions import Reduction, get_reduction

#: Fingerprints lie in [0, CEILING], so that both h and CEILING − h travel as int32.
CEILING = 2**31 - 1

Norm = int | str | tuple[int | str, int | str]

#: Levels per octave of every base.
OCTAVES = {2.0: 1, 2.0**0.5: 2, 2.0**0.25: 4}
_BASE_TEXT = {1: "2", 2: "2**0.5", 4: "2**0.25"}


@dataclass(frozen=True, repr=False)
class Config:
    """What all ranks must agree on.

    Parameters
    ----------
    levels
        ``"linear"`` (standard dithering) or ``"exponential"``.
    bits
        Wire bits an element. Linear: a lane width of 3, 4, 5, 6, 8, 10 or 16; 8 serves up to 127
        workers, 3 up to 3. Exponential: a code width of 2 to 8, for any number of workers.
    norm
        The global norm ‖x‖_{q,p}: ``"inf"``, ``2``, ``1`` for q = p, or a pair ``(q, p)``.
    block
        Consecutive elements that share a norm, a power of two from 128 up; ``None``: the tensor.
    rounding
        ``"correlated"`` or ``"independent"`` across ranks.
    base
        Exponential only: 2, 2**0.5 or 2**0.25; ``None``: the finest whose smallest level is still
        at most 2^-10.
    reduction
        Exponential only: a registered name; ``None`` stands for ``"exact"``.
    min_size
        Tensors with fewer elements go uncompressed.
    seed
        Of the dither, 0 to 2^32 − 1.

    >>> Config(levels="exponential", bits=4)
    Config(levels='exponential', bits=4, norm='inf', block=1024, rounding='correlated', base=2,
    reduction='exact', min_size=1024, seed=0)
    """

    levels: str = "linear"
    bits: int = 8
    norm: Norm = "inf"
    block: int | None = 1024
    rounding: str = "correlated"
    base: float | None = None
    reduction: str | None = None
    min_size: int = 1024
    seed: int = 0

    def __post_init__(self) -> None:
        _choice("levels", self.levels, ("linear", "exponential"))
        _choice("rounding", self.rounding, ("correlated", "independent"))
        _integer("min_size", self.min_size, 0, None)
        _integer("seed", self.seed, 0, 2**32 - 1)
        object.__setattr__(self, "norm", _norm(self.norm))
        if self.block is not None:
            _integer("block", self.block, 128, None, "a power of two from 128 up, or None")
            if self.block & (self.block - 1):
                raise _invalid("block", self.block, "a power of two from 128 up, or None")
        if self.levels == "linear":
            _choice("bits", self.bits, tuple(LANES), ' with levels="linear"')
            for name in ("base", "reduction"):
                if getattr(self, name) is not None:
                    raise _invalid(name, getattr(self, name), 'only levels="exponential" has it')
        else:
            _integer("bits", self.bits, 2, 8, '2 to 8 with levels="exponential"')
            octave = _octave(self.base, self.bits)
            object.__setattr__(self, "base", next(b for b, o in OCTAVES.items() if o == octave))
            object.__setattr__(self, "reduction", self.reduction or "exact")
            get_reduction(self.reduction)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"Config({self.arguments()})"

    def arguments(self) -> str:
        """The parameters as Python source, ``levels='linear', bits=8, …``."""
        shown = {name: repr(value) for name, value in self.to_dict().items()}
        if self.base is not None:
            shown["base"] = _BASE_TEXT[OCTAVES[self.base]]
        return ", ".join(f"{name}={text}" for name, text in shown.items())

    def to_dict(self) -> dict[str, Any]:
        """The parameters that apply; ``Config(**config.to_dict()) == config``."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        if self.levels == "linear":
            del fields["base"], fields["reduction"]
        return fields

    @classmethod
    def from_environment(
        cls, explicit: Mapping[str, Any], environ: Mapping[str, str] = os.environ
    ) -> "Config":
        """``explicit`` parameters, and ``HOROVOD_GQSGD_<PARAMETER>`` for the others.

        >>> Config.from_environment({"seed": 3}, {"HOROVOD_GQSGD_BITS": "6"}).bits
        6
        """
        found: dict[str, Any] = {}
        for name, parse in _PARSERS.items():
            text = environ.get(variable := f"HOROVOD_GQSGD_{name.upper()}")
            if text is None or name in explicit:
                continue
            try:
                found[name] = parse(text.strip())
            except ValueError:
                raise ValueError(f"{variable}={text!r} in the environment: not a {name}") from None
        levels = {**found, **explicit}.get("levels", "linear")
        if levels != "exponential":  # a default for the other scheme is not a mistake
            found = {k: v for k, v in found.items() if k not in ("base", "reduction")}
        try:
            return cls(**{**found, **explicit})
        except ValueError as error:
            if not found:
                raise
            used = ", ".join(f"HOROVOD_GQSGD_{name.upper()}" for name in found)
            raise ValueError(f"{error} (from the environment: {used})") from None

    def fingerprint(self, *context: object) -> int:
        """A number in [0, 2^31 − 1] of version, parameters, reduction and the given ``context``."""
        identity = self.reducer.identity if self.levels == "exponential" else ""
        text = repr((__version__, self.arguments(), identity, *map(str, context)))
        digest = hashlib.blake2b(text.encode(), digest_size=4).digest()
        return int.from_bytes(digest, "little") & CEILING

    @property
    def q(self) -> int | str:
        """The norm over the elements of one rank."""
        return self.norm[0] if isinstance(self.norm, tuple) else self.norm

    @property
    def p(self) -> int | str:
        """The norm over the ranks."""
        return self.norm[1] if isinstance(self.norm, tuple) else self.norm

    @property
    def code(self) -> Levels:
        """The exponential levels."""
        assert self.base is not None, "linear levels depend on the number of workers"
        return Levels(self.bits, OCTAVES[self.base])

    @property
    def reducer(self) -> Reduction:
        """The registered reduction of exponential levels."""
        assert self.reduction is not None, "linear codes are summed by Horovod"
        return get_reduction(self.reduction)

    def check_world(self, n: int) -> None:
        """Raise where ``bits`` cannot hold the sum of ``n`` workers."""
        if self.levels == "linear":
            level_count(self.bits, n)


def _invalid(name: str, value: object, allowed: str) -> ValueError:
    return ValueError(f"{name}={value!r} is not allowed: {allowed}")


def _choice(name: str, value: object, allowed: tuple, when: str = "") -> None:
    if isinstance(value, bool) or value not in allowed:
        raise _invalid(name, value, " or ".join(map(repr, allowed)) + when)


def _integer(name: str, value: object, low: int, high: int | None, allowed: str = "") -> None:
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or value < low
        or value > (math.inf if high is None else high)
    ):
        span = f"an integer from {low} up" if high is None else f"an integer from {low} to {high}"
        raise _invalid(name, value, allowed or span)


def _norm(norm: object) -> Norm:
    pair = norm if isinstance(norm, tuple | list) else (norm, norm)
    orders: tuple[int | str, ...] = (1, 2, "inf")
    if len(pair) != 2 or any(isinstance(o, bool) or o not in orders for o in pair):
        raise _invalid("norm", norm, '1, 2, "inf" or a pair (q, p) of these')
    q, p = (next(o for o in orders if o == given) for given in pair)
    return q if q == p else (q, p)


def _octave(base: float | None, bits: int) -> int:
    if base is None:
        return 4 if bits >= 7 else 2 if bits == 6 else 1
    if isinstance(base, int | float) and not isinstance(base, bool):
        for known, octave in OCTAVES.items():
            if math.isclose(base, known, rel_tol=1e-6):
                return octave
    raise _invalid("base", base, "2, 2**0.5, 2**0.25 or None")


def _parse_norm(text: str) -> Norm:
    orders = tuple(part if part == "inf" else int(part) for part in text.strip("()").split(","))
    return orders[0] if len(orders) == 1 else orders  # type: ignore[return-value]


def _parse_base(text: str) -> float:
    if text.startswith("2**"):
        return 2.0 ** float(text[3:])
    return float(text)


_PARSERS: dict[str, Callable[[str], Any]] = {
    "levels": str,
    "bits": int,
    "norm": _parse_norm,
    "block": lambda text: None if text.lower() == "none" else int(text),
    "rounding": str,
    "base": _parse_base,
    "reduction": str,
    "min_size": int,
    "seed": int,
}


def parse_parameter(name: str, text: str) -> Any:
    """A parameter from its spelling in the environment or on a command line.

    >>> parse_parameter("bits", "6"), parse_parameter("norm", "(2,inf)")
    (6, (2, 'inf'))
    """
    if name not in _PARSERS:
        raise ValueError(f"no parameter {name!r}: there are {', '.join(_PARSERS)}")
    try:
        return _PARSERS[name](text.strip())
    except ValueError:
        raise ValueError(f"{name}={text!r}: not a {name}") from None
