import dataclasses
import math

import numpy as np
import pytest

from horovod_gqsgd import reductions
from horovod_gqsgd.config import CEILING, Config

EXPONENTIAL = {"levels": "exponential"}
VALID = [
    {},
    {"bits": 3},
    {"bits": 16, "seed": 2**32 - 1, "min_size": 0},
    {"norm": 2, "block": None},
    {"norm": (1, "inf"), "block": 128, "rounding": "independent"},
    {"norm": ["inf", 2]},
    EXPONENTIAL,
    {**EXPONENTIAL, "bits": 2, "base": 2},
    {**EXPONENTIAL, "bits": 4, "base": 2**0.5, "reduction": "pairwise"},
    {**EXPONENTIAL, "bits": 8, "base": 2**0.25, "block": 2**20},
]


@pytest.mark.parametrize("parameters", VALID, ids=str)
def test_repr_and_dict_round_trip(parameters):
    config = Config(**parameters)
    assert eval(repr(config)) == config
    assert Config(**config.to_dict()) == config
    assert hash(eval(repr(config))) == hash(config)
    assert dataclasses.replace(config) == config


def test_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().bits = 4  # type: ignore[misc]


INVALID = [
    ({"levels": "log"}, "levels='log' is not allowed: 'linear' or 'exponential'"),
    ({"levels": None}, "levels=None"),
    ({"bits": 7}, "bits=7 is not allowed: 3 or 4 or 5 or 6 or 8 or 10 or 16"),
    ({"bits": True}, "bits=True"),
    ({"bits": "8"}, "bits='8'"),
    ({"bits": 8.5}, "bits=8.5"),
    ({**EXPONENTIAL, "bits": 9}, "bits=9 is not allowed: 2 to 8"),
    ({**EXPONENTIAL, "bits": 1}, "bits=1 "),
    ({"norm": 3}, 'norm=3 is not allowed: 1, 2, "inf" or a pair'),
    ({"norm": (1, 2, 2)}, "norm="),
    ({"norm": math.inf}, "norm=inf"),
    ({"norm": "2"}, "norm='2'"),
    ({"block": 64}, "block=64 is not allowed: a power of two from 128 up, or None"),
    ({"block": 1000}, "block=1000"),
    ({"block": 1024.0}, "block=1024.0"),
    ({"rounding": "nearest"}, "rounding='nearest'"),
    ({"base": 2}, 'base=2 is not allowed: only levels="exponential" has it'),
    ({"reduction": "exact"}, "reduction='exact' is not allowed: only"),
    ({**EXPONENTIAL, "base": 3}, r"base=3 is not allowed: 2, 2\*\*0.5, 2\*\*0.25 or None"),
    ({**EXPONENTIAL, "base": "2"}, "base='2'"),
    ({**EXPONENTIAL, "reduction": "sum"}, "reduction='sum' is not registered"),
    ({"min_size": -1}, "min_size=-1 is not allowed: an integer from 0 up"),
    ({"seed": 2**32}, "seed=4294967296 is not allowed: an integer from 0 to 4294967295"),
    ({"seed": -1}, "seed=-1"),
    ({"seed": None}, "seed=None"),
]


@pytest.mark.parametrize(("parameters", "message"), INVALID, ids=str)
def test_invalid_parameters_name_value_and_fix(parameters, message):
    with pytest.raises(ValueError, match=message):
        Config(**parameters)


def test_unknown_parameter():
    with pytest.raises(TypeError, match="bit"):
        Config(bit=8)  # type: ignore[call-arg]


@pytest.mark.parametrize(("bits", "octave"), [(2, 1), (5, 1), (6, 2), (7, 4), (8, 4)])
def test_default_base_is_the_finest_that_reaches_far_enough(bits, octave):
    levels = Config(levels="exponential", bits=bits).code
    assert levels.octave == octave
    if bits >= 5:
        assert levels.values[-1] <= 2.0**-10


def test_world_size():
    Config().check_world(127)
    Config(levels="exponential", bits=2).check_world(10**6)
    with pytest.raises(ValueError, match=r"bits=8 cannot hold 128 workers \(needs at least 10\)"):
        Config().check_world(128)


@pytest.mark.parametrize(("norm", "pair"), [("inf", ("inf", "inf")), (2, (2, 2)), ((1, 2), (1, 2))])
def test_norm_orders(norm, pair):
    config = Config(norm=norm)
    assert (config.q, config.p) == pair


class TestEnvironment:
    def test_replaces_defaults(self):
        environ = {
            "HOROVOD_GQSGD_LEVELS": "exponential",
            "HOROVOD_GQSGD_BITS": " 6 ",
            "HOROVOD_GQSGD_NORM": "2,inf",
            "HOROVOD_GQSGD_BLOCK": "none",
            "HOROVOD_GQSGD_ROUNDING": "independent",
            "HOROVOD_GQSGD_BASE": "2**0.25",
            "HOROVOD_GQSGD_REDUCTION": "pairwise",
            "HOROVOD_GQSGD_MIN_SIZE": "0",
            "HOROVOD_GQSGD_SEED": "9",
            "HOROVOD_CYCLE_TIME": "1",
        }
        assert Config.from_environment({}, environ) == Config(
            "exponential", 6, (2, "inf"), None, "independent", 2**0.25, "pairwise", 0, 9
        )

    def test_never_replaces_an_argument(self):
        environ = {"HOROVOD_GQSGD_BITS": "6", "HOROVOD_GQSGD_SEED": "1"}
        assert Config.from_environment({"bits": 8}, environ) == Config(bits=8, seed=1)

    def test_defaults_of_the_other_scheme_are_left_alone(self):
        environ = {"HOROVOD_GQSGD_REDUCTION": "pairwise", "HOROVOD_GQSGD_BASE": "2"}
        assert Config.from_environment({}, environ) == Config()
        assert Config.from_environment(EXPONENTIAL, environ).reduction == "pairwise"

    @pytest.mark.parametrize("text", ["1", "2", "inf", "1,2", "(inf, 1)"])
    def test_norms(self, text):
        config = Config.from_environment({}, {"HOROVOD_GQSGD_NORM": text})
        assert str(config.q) in text

    @pytest.mark.parametrize(
        ("name", "text"), [("BITS", "eight"), ("BASE", "two"), ("NORM", "x"), ("BLOCK", "1k")]
    )
    def test_unreadable_values_name_the_variable(self, name, text):
        with pytest.raises(ValueError, match=f"HOROVOD_GQSGD_{name}='{text}' in the environment"):
            Config.from_environment(EXPONENTIAL, {f"HOROVOD_GQSGD_{name}": text})

    def test_invalid_values_name_the_variable(self):
        with pytest.raises(ValueError, match=r"bits=7 .*from the environment: HOROVOD_GQSGD_BITS"):
            Config.from_environment({}, {"HOROVOD_GQSGD_BITS": "7"})


class TestFingerprint:
    def test_range_and_stability(self):
        prints = [Config(seed=seed).fingerprint() for seed in range(2000)]
        assert all(0 <= value <= CEILING for value in prints)
        assert len(set(prints)) > 1990
        assert Config().fingerprint() == Config(bits=8).fingerprint()

    @pytest.mark.parametrize("parameters", VALID[1:], ids=str)
    def test_every_parameter_counts(self, parameters):
        assert Config(**parameters).fingerprint() != Config().fingerprint()

    def test_context_counts(self):
        assert Config().fingerprint("float32") != Config().fingerprint("float16")

    def test_version_counts(self, monkeypatch):
        before = Config().fingerprint()
        monkeypatch.setattr("horovod_gqsgd.config.__version__", "9.9")
        assert Config().fingerprint() != before

    def test_what_is_registered_counts(self, monkeypatch):
        def mine(codes, levels, dither):
            return np.max(codes, axis=0)

        prints = []
        for version in (1, 2):
            monkeypatch.setattr(reductions, "_registry", {})
            reductions.register_reduction("mine", mine, version=version)
            prints.append(Config(**EXPONENTIAL, reduction="mine").fingerprint())
        assert prints[0] != prints[1]
