"""Configuration: the parameters of Global-QSGD, validated, immutable and comparable."""

import dataclasses
import hashlib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from horovod_gqsgd import __version__
from horovod_gqsgd.codecs import Codec, codecs
from horovod_gqsgd.codecs.base import invalid
from horovod_gqsgd.codecs.exponential import OCTAVES, Levels
from horovod_gqsgd.reductions import Reduction, get_reduction

#: Fingerprints lie in [0, CEILING], so that both h and CEILING − h travel as int32.
CEILING = 2**31 - 1

Norm = int | str | tuple[int | str, int | str]

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
        _choice("levels", self.levels, tuple(dict.fromkeys((Config.levels, *codecs()))))
        _choice("rounding", self.rounding, ("correlated", "independent"))
        _integer("min_size", self.min_size, 0, None)
        _integer("seed", self.seed, 0, 2**32 - 1)
        object.__setattr__(self, "norm", _norm(self.norm))
        if self.block is not None:
            _integer("block", self.block, 128, None, "a power of two from 128 up, or None")
            if self.block & (self.block - 1):
                raise invalid("block", self.block, "a power of two from 128 up, or None")
        for name, owner in _special().items():
            if name not in self.codec.parameters and getattr(self, name) is not None:
                raise invalid(name, getattr(self, name), f'only levels="{owner}" has it')
        for name, value in self.codec.complete(self).items():
            object.__setattr__(self, name, value)

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
        foreign = _special().keys() - {*self.codec.parameters}
        return {name: value for name, value in fields.items() if name not in foreign}

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
        codec = codecs().get({**found, **explicit}.get("levels", cls.levels))
        if codec:  # a default for another scheme is not a mistake
            foreign = _special().keys() - {*codec.parameters}
            found = {name: value for name, value in found.items() if name not in foreign}
        try:
            return cls(**{**found, **explicit})
        except ValueError as error:
            if not found:
                raise
            used = ", ".join(f"HOROVOD_GQSGD_{name.upper()}" for name in found)
            raise ValueError(f"{error} (from the environment: {used})") from None

    def fingerprint(self, *context: object) -> int:
        """A number in [0, 2^31 − 1] of version, parameters, reduction and the given ``context``."""
        identity = "".join(self.codec.identity(self).values())
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
    def codec(self) -> type[Codec]:
        """What the levels are quantised and exchanged by."""
        return codecs()[self.levels]

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
        self.codec.check_world(self, n)


def _special() -> dict[str, str]:
    """Parameters that one codec alone has, with its name."""
    return {name: levels for levels, codec in codecs().items() for name in codec.parameters}


def _choice(name: str, value: object, allowed: tuple, when: str = "") -> None:
    if isinstance(value, bool) or value not in allowed:
        raise invalid(name, value, " or ".join(map(repr, allowed)) + when)


def _integer(name: str, value: object, low: int, high: int | None, allowed: str = "") -> None:
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or value < low
        or value > (math.inf if high is None else high)
    ):
        span = f"an integer from {low} up" if high is None else f"an integer from {low} to {high}"
        raise invalid(name, value, allowed or span)


def _norm(norm: object) -> Norm:
    pair = norm if isinstance(norm, tuple | list) else (norm, norm)
    orders: tuple[int | str, ...] = (1, 2, "inf")
    if len(pair) != 2 or any(isinstance(o, bool) or o not in orders for o in pair):
        raise invalid("norm", norm, '1, 2, "inf" or a pair (q, p) of these')
    q, p = (next(o for o in orders if o == given) for given in pair)
    return q if q == p else (q, p)


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
