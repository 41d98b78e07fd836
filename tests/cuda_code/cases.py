"""For every kernel of the catalogue the check that runs it."""

from horovod_gqsgd.config import Config
from tests.unit import cuda_checks as checks
from tests.unit.test_kernels import DTYPES, sample

#: How kernels call the ways to draw dither, and a configuration and world size that choose them.
ROUNDINGS = {
    "independent": ("independent", 2),
    "binary": ("correlated", 4),
    "correlated": ("correlated", 3),
}


def check(name: str, device: checks.Device, size: int, block: int = 1024) -> None:
    """Run the kernel called so, and others that come before it, on ``size`` elements.

    ``block``: of the norms, for the kernels that handle norms.
    """
    operation, *variant = name.split()
    x = sample(size, variant[-1] if variant and variant[-1] in DTYPES else "float32")
    match operation, *variant:
        case ("prepare.header",):
            checks.check_header(device, max(size, 3), size - 1 if size > 3 else -1)
        case "norm.maximum", _:
            checks.check_norms(device, x, Config(block=block))
        case "norm.total", q, _:
            checks.check_norms(device, x, Config(norm=int(q), block=block))
        case "norm.contribution", q, p:
            config = Config(norm=(_order(q), _order(p)), block=block)
            checks.check_contribution(device, config, size, 3)
            checks.check_norms(device, x, config)
        case "prepare.prepare", p:
            config = Config(norm=("inf", _order(p)), block=block)
            checks.check_prepare(device, x, config, 4, 1)
        case "linear.encode", kind, _:
            rounding, n = ROUNDINGS[kind]
            checks.check_linear(device, x, Config(rounding=rounding), n, 1)
        case "linear.decode", _:
            checks.check_linear(device, x, Config(), 4, 1)
        case "exponential.encode", octave, kind, _:
            rounding, n = ROUNDINGS[kind]
            checks.check_exponential(device, x, _exponential(octave, rounding=rounding), n, 1)
        case "exponential.decode", octave, _:
            checks.check_exponential(device, x, _exponential(octave), 4, 1)
        case (("reduce.exact" | "reduce.pairwise"), octave):
            config = _exponential(octave, reduction=operation.removeprefix("reduce."))
            checks.check_reduce(device, config, 4, size, 1000)
        case (("reduce.dither" | "groups.pack" | "groups.unpack"),):
            checks.check_registered(device, 8, size, 1000)
        case _:
            raise NotImplementedError(f"no check of {name}")


def _order(norm: str) -> int | str:
    return norm if norm == "inf" else int(norm)


def _exponential(octave: str, **settings: str) -> Config:
    return Config(levels="exponential", base=2 ** (1 / int(octave)), **settings)  # type: ignore[arg-type]
