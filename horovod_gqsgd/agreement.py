"""Agreement: ranks that differ learn so, all of them, before a gradient is lost.

Every exchange of norms begins with an int32 header (h, C − h, step), h the fingerprint of the
configuration and C = 2^31 − 1. After an allreduce with Max every rank sees the largest and the
smallest fingerprint, and the largest step, which late and restarted ranks adopt. A rank that has
joined contributes zeros, which change nothing; where it must not be missing, a roll follows the
header, in which every rank marks its own place.
"""

import hashlib
import json
import re
from collections.abc import Sequence

import numpy as np

from horovod_gqsgd import __version__
from horovod_gqsgd.config import CEILING, Config

#: Length of the header.
HEADER = 3

#: Bytes of a description, and characters of a value in it: all values of a configuration fit.
DESCRIPTION, LONGEST = 1024, 120


class DisagreementError(ValueError):
    """The ranks cannot work together; not a RuntimeError, which elastic jobs would retry."""


class JoinedError(ValueError):
    """A rank has joined, and the scheme cannot do without it."""


class ReductionError(ValueError):
    """A registered reduction has failed, here or on another rank."""

    def __init__(self, name: str, reduction: str, cause: Exception | None = None) -> None:
        told = (
            f": {type(cause).__name__}: {cause}" if cause else " on another rank, which tells why"
        )
        super().__init__(f"GlobalQSGD: reduction {reduction!r} of {name} failed{told}")


def write_header(header: np.ndarray, fingerprint: int, step: int) -> None:
    """Fill the first three int32 of a norm vector."""
    header[:HEADER] = fingerprint, CEILING - fingerprint, step


def read_header(header: np.ndarray) -> tuple[bool, int]:
    """Whether all ranks agree, and the step, from a header after Max.

    >>> ours, theirs = np.zeros(3, np.int32), np.zeros(3, np.int32)
    >>> write_header(ours, 7, 4), write_header(theirs, 8, 5)
    (None, None)
    >>> read_header(np.maximum(ours, theirs))
    (False, 5)
    """
    largest, smallest, step = (int(value) for value in header[:HEADER])
    return largest == CEILING - smallest, step


def write_roll(roll: np.ndarray, rank: int) -> None:
    """Mark this rank in a roll of as many int32 as there are ranks."""
    roll[:] = 0
    roll[rank] = 1


def check_roll(roll: np.ndarray, name: str, ranks: Sequence[int] | None = None) -> None:
    """Raise `JoinedError` where a rank is missing in a roll after Max.

    ``ranks`` are those of the process set, if it is not that of all.

    Horovod refuses alltoall and allgather with a joined rank only until their negotiation is in
    its response cache; from the second step on it would carry them out with garbage, or hang.

    >>> check_roll(np.array([1, 0, 1], np.int32), "fc.weight")
    Traceback (most recent call last):
    horovod_gqsgd.agreement.JoinedError: GlobalQSGD: rank 1 has joined, so fc.weight cannot be
    reduced with levels="exponential", which needs every rank: use levels="linear", which sums
    without those that have joined, or give all ranks the same number of steps
    """
    if not roll.all():
        ranks = ranks or range(len(roll))
        missing = [str(ranks[place]) for place in np.flatnonzero(roll == 0)]
        who = f"rank{'s' * (len(missing) > 1)} {', '.join(missing)}"
        raise _joined(name, f"{who} {'have' if len(missing) > 1 else 'has'} joined")


def _joined(name: str, what: str) -> JoinedError:
    return JoinedError(
        f'GlobalQSGD: {what}, so {name} cannot be reduced with levels="exponential", which needs '
        'every rank: use levels="linear", which sums without those that have joined, or give all '
        "ranks the same number of steps"
    )


def describe(config: Config, context: dict[str, str]) -> np.ndarray:
    """What ranks that disagree send one another, as bytes of fixed length."""
    fields = {
        "version": __version__,
        **config.to_dict(),
        **config.codec.identity(config),
        **context,
    }
    text = json.dumps({name: _brief(str(value)) for name, value in fields.items()}).encode()
    return np.frombuffer(text.ljust(DESCRIPTION), np.uint8)


def _brief(text: str) -> str:
    """A value that may be long, such that values that differ still do.

    >>> _brief("0123456789" * 20)[80:]
    '0123456789... digest bb80308b'
    """
    plain = text.encode("ascii", "replace").decode()  # JSON takes up to 12 bytes for a character
    if plain == text and len(text) <= LONGEST:
        return text
    return f"{plain[: LONGEST - 30]}... digest {digest(text)}"


def digest(text: str) -> str:
    """Eight characters that tell long texts apart."""
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def explain(
    name: str, descriptions: np.ndarray, ranks: Sequence[int] | None = None
) -> DisagreementError:
    """The error that names what differs, from the `describe` bytes of all ranks, a row each.

    ``ranks`` are those of the process set, if it is not that of all.

    >>> rows = [describe(Config(bits=bits), {}) for bits in (8, 6, 8)]
    >>> explain("fc.weight", np.stack(rows)).args[0]
    'GlobalQSGD: the ranks disagree on fc.weight: bits is 8 on ranks 0, 2; 6 on rank 1. Give
    every rank the same configuration.'
    """
    told = [json.loads(row.tobytes()) for row in descriptions]
    ranks = ranks or range(len(told))
    differences = []
    for field in dict.fromkeys(key for fields in told for key in fields):
        holders: dict[str, list[str]] = {}
        for rank, fields in zip(ranks, told, strict=True):
            holders.setdefault(fields.get(field, "unset"), []).append(str(rank))
        if len(holders) > 1:
            parts = (
                f"{value} on rank{'s' * (len(who) > 1)} {', '.join(who)}"
                for value, who in holders.items()
            )
            differences.append(f"{field} is {'; '.join(parts)}")
    what = ". ".join(differences) or "their configurations have different fingerprints"
    return DisagreementError(
        f"GlobalQSGD: the ranks disagree on {name}: {what}. Give every rank the same configuration."
    )


def translate(name: str, error: BaseException) -> BaseException:
    """Horovod's own complaint about a mismatch, in terms of the compressor; others unchanged."""
    if "not supported with Join" in str(error):
        return _joined(name, "a rank has joined")
    if not re.search(r"Mismatched|different shapes|One rank", str(error)):
        return error
    return DisagreementError(
        f"GlobalQSGD: the ranks do not send the same thing for {name}: one of them does not "
        "compress it, or has other levels, another block, min_size or tensor shape. Give every "
        f"rank the same compression= and the same model. Horovod says: {error}"
    )
