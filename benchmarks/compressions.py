"""Compressions as benchmarks spell them on their command lines.

``none``, ``fp16``, ``gqsgd``, and ``gqsgd:`` with parameters of GlobalQSGD that differ from the
default: ``gqsgd:bits=6``, ``gqsgd:levels=exponential,bits=4``, ``gqsgd:norm=(2,inf),block=none``.
"""

import argparse
import re
from collections.abc import Mapping
from typing import Any

import horovod.torch as hvd
from torch import nn

from horovod_gqsgd.config import parse_parameter
from horovod_gqsgd.torch import GlobalQSGD

STOCK = {"none": hvd.Compression.none, "fp16": hvd.Compression.fp16}


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


def compressor(text: str) -> Any:
    """What Horovod takes as ``compression=``.

    >>> compressor("gqsgd:bits=6") == GlobalQSGD(bits=6)
    True
    """
    if text in STOCK:
        return STOCK[text]
    scheme, colon, rest = text.partition(":")
    if scheme != "gqsgd":
        raise ValueError(f"{text!r}: there are none, fp16, gqsgd and gqsgd:name=value,…")
    return GlobalQSGD(**parameters(rest)) if colon else GlobalQSGD()


def argument(text: str) -> str:
    """``text``, once it is known to be a compression; for argparse, which then tells the error."""
    try:
        compressor(text)
    except (ValueError, NotImplementedError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def sent_bytes(name: str, model: nn.Module, totals: Mapping[str, float], steps: int) -> int:
    """Bytes handed to Horovod per step: compressed tensors, and those too small for it.

    ``totals`` are those of `horovod_gqsgd.torch.statistics` over ``steps``.
    """
    plain = sum(p.numel() * p.element_size() for p in model.parameters())
    if name == "fp16":
        return plain // 2
    raw = totals["raw_bytes"]
    sent = sum(totals.get(f"{what}_bytes", 0) for what in ("norm", "word", "code"))
    return plain + round((sent - raw) / steps)
