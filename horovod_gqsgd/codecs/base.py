"""What every codec is: numbers on flat arrays. It knows no framework and no Horovod.

A codec turns gradients into a payload, says in which rounds of collectives payloads meet, and makes
of what comes back the mean. `exchange` and the adapters carry its payloads without knowing which
codec it is.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from horovod_gqsgd import norms
from horovod_gqsgd.dither import Dither

if TYPE_CHECKING:
    from horovod_gqsgd.config import Config


class Round(NamedTuple):
    """A collective that a payload goes through.

    ``sum`` adds the ranks' payloads. ``scatter`` sends every rank its share of all of them, and
    ``gather`` gives every rank what all have; where they ``reduce``, what arrives are rows, one of
    every rank, which the codec makes one row of. ``tag`` is in the name of the collective.
    """

    tag: str
    kind: Literal["sum", "scatter", "gather"]
    reduce: bool = False


@dataclass(frozen=True)
class Codec(ABC):
    """A configuration as ``rank`` of ``n`` workers uses it; flat contiguous arrays in and out.

    With ``start`` and ``stop``, `encode` and `decode` do those elements of a tensor alone, as
    `sections` divides it.
    """

    config: "Config"
    rank: int
    n: int

    #: The value of ``levels`` that stands for it, and the parameters that it alone has.
    levels: ClassVar[str]
    parameters: ClassVar[tuple[str, ...]] = ()
    #: Of the payload: its type, what `statistics` calls it, and what collectives are named after.
    dtype: ClassVar[type]
    what: ClassVar[str]
    #: Whether a rank that has joined is missed.
    needs_all: ClassVar[bool] = False
    #: Whether `cuda_kernels` have its operations.
    cuda: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.check_world(self.config, self.n)

    @classmethod
    @abstractmethod
    def complete(cls, config: "Config") -> Mapping[str, Any]:
        """Values for parameters that were not given; raises ValueError for what is not allowed."""

    @classmethod
    def check_world(cls, config: "Config", n: int) -> None:
        """Raise where the configuration cannot serve ``n`` workers."""

    @classmethod
    def identity(cls, config: "Config") -> dict[str, str]:
        """What ranks must have in common besides the parameters, by the name of a parameter."""
        return {}

    @classmethod
    @abstractmethod
    def mean(
        cls,
        config: "Config",
        arrays: Sequence[np.ndarray],
        norm: np.ndarray,
        dither: Dither,
        factor: float,
    ) -> np.ndarray:
        """The specification: the mean of the ranks' float32 ``arrays`` times ``factor``.

        With the global ``norm`` of every element; see `reference`.
        """

    @classmethod
    def stays_on_device(cls, config: "Config") -> bool:
        """Whether nothing of it needs the host where gradients are on a GPU."""
        return cls.cuda

    @property
    def reduction(self) -> str:
        """What rows are combined by, for messages."""
        return self.levels

    @property
    def unit(self) -> int:
        """Elements of the payload that stay together where it is divided among ranks."""
        return 1

    @property
    @abstractmethod
    def section(self) -> int:
        """Elements that should travel together, of tensors that are larger."""

    @abstractmethod
    def length(self, size: int) -> int:
        """Elements of the payload of a tensor with ``size`` elements."""

    @abstractmethod
    def ways(self) -> tuple[tuple[Round, ...], ...]:
        """The tables of rounds that there are: one, or two that `second_way` decides between."""

    def second_way(self, length: Any, n: Any) -> Any:
        """Whether a payload of so many elements takes the second table; in graphs of tensors, too.

        The same on all ranks.
        """
        return False

    def rounds(self, length: int) -> tuple[Round, ...]:
        """The rounds of a message whose payload has ``length`` elements."""
        return self.ways()[self.second_way(length, self.n)]

    def norm_count(self, size: int) -> int:
        """Norms of a tensor with ``size`` elements."""
        return norms.blocks(size, self.config.block)

    def local_norms(self, x: np.ndarray, out: np.ndarray) -> None:
        """The contribution of this rank: int32 for Max if p = ∞, else float64 for Sum."""
        from horovod_gqsgd.kernels import norm

        norm.local(x, self.config.q, self.config.p, self.config.block, out)

    def join_norms(self, reduced: np.ndarray) -> np.ndarray:
        """Float32 norms from what the ranks' contributions were reduced to."""
        return norms.joined(reduced, self.config.p)

    @abstractmethod
    def encode(
        self,
        x: np.ndarray,
        norm: np.ndarray,
        out: np.ndarray,
        dither: Dither,
        start: int = 0,
        stop: int | None = None,
        own: np.ndarray | None = None,
    ) -> None:
        """Quantise ``x`` into ``out``, its payload.

        ``own``: what `local_norms` gave, if it was for Max.
        """

    def reduce(
        self,
        rows: np.ndarray,
        out: np.ndarray,
        sizes: Sequence[int],
        low: int,
        dithers: Sequence[Dither],
    ) -> None:
        """Combine the ranks' payloads of a part of a message, where a round reduces.

        ``rows``, a row of every rank, begin with unit ``low`` of a message of tensors with the
        given ``sizes``; ``out`` has the same layout.
        """
        raise TypeError(f"{type(self).__name__} has no round that reduces")

    @abstractmethod
    def decode(
        self,
        payload: np.ndarray,
        norm: np.ndarray,
        out: np.ndarray,
        factor: float,
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        """The mean times ``factor`` from what the rounds have made of the payload."""


_registry: dict[str, type[Codec]] = {}


def register_codec(codec: type[Codec]) -> type[Codec]:
    """Make a codec available under its ``levels``; a class decorator."""
    if codec.levels in _registry:
        raise ValueError(f"levels={codec.levels!r} is taken by {_registry[codec.levels].__name__}")
    _registry[codec.levels] = codec
    return codec


def codecs() -> Mapping[str, type[Codec]]:
    """All registered codecs by their ``levels``."""
    return _registry


def invalid(name: str, value: object, allowed: str) -> ValueError:
    """The error for a value that a parameter does not take."""
    return ValueError(f"{name}={value!r} is not allowed: {allowed}")
