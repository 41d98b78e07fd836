"""Compressions as benchmarks spell them on their command lines.

``none``, ``fp16``, ``gqsgd``, and ``gqsgd:`` with parameters of GlobalQSGD that differ from the
default: ``gqsgd:bits=6``, ``gqsgd:levels=exponential,bits=4``, ``gqsgd:norm=(2,inf),block=none``.
"""

import argparse
import re
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from horovod_gqsgd.config import Config, parse_parameter

if TYPE_CHECKING:
    from torch import nn


def parameters(text: str) -> dict[str, Any]:
    """The part behind the colon; commas inside parentheses do not separate.

    >>> parameters("bits=6,norm=(2,inf)")
    {'bits': 6, 'norm': (2, 'inf')}
    """
    found: dict[str, Any] = {}
    for part in re.split(r",(?![^(]*\))", text):
        name, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"{part!r}: parameters are given as name=value, e.g. gqsgd:bits=6")
        if name in found:
            raise ValueError(f"{name} is given twice")
        found[name] = parse_parameter(name, value)
    return found


def compressor(text: str, framework: str = "torch") -> Any:
    """What Horovod takes as ``compression=``.

    >>> compressor("gqsgd:bits=6")
    GlobalQSGD(levels='linear', bits=6, norm='inf', block=1024, rounding='correlated',
    min_size=1024, seed=0)
    """
    found = parse(text)
    if found is None:
        return getattr(import_module(f"horovod.{framework}").Compression, text)
    return import_module(f"horovod_gqsgd.{framework}").GlobalQSGD(**found)


def parse(text: str) -> dict[str, Any] | None:
    """Parameters of GlobalQSGD, checked; None for a compression of Horovod's own."""
    if text in ("none", "fp16"):
        return None
    scheme, colon, rest = text.partition(":")
    if scheme != "gqsgd":
        raise ValueError(f"{text!r}: there are none, fp16, gqsgd and gqsgd:name=value,…")
    found = parameters(rest) if colon else {}
    Config.from_environment(found)
    return found


def argument(text: str) -> str:
    """``text``, once it is known to be a compression; for argparse, which then tells the error."""
    try:
        parse(text)
    except (ValueError, NotImplementedError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def sent_bytes(name: str, model: "nn.Module", totals: Mapping[str, float], steps: int) -> int:
    """Bytes handed to Horovod per step: compressed tensors, and those too small for it.

    ``totals`` are those of `horovod_gqsgd.statistics` over ``steps``.
    """
    plain = sum(p.numel() * p.element_size() for p in model.parameters())
    return handed_bytes(name, plain, totals, steps)


def handed_bytes(name: str, plain: int, totals: Mapping[str, float], steps: int) -> int:
    """The same for parameters of ``plain`` bytes."""
    if name == "fp16":
        return plain // 2
    raw = totals["raw_bytes"]
    sent = sum(totals.get(f"{what}_bytes", 0) for what in ("norm", "word", "code"))
    return plain + round((sent - raw) / steps)
