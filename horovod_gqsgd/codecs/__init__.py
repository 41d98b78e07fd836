"""The codecs: a file each, with its specification, its rounds and which kernels it has."""

from horovod_gqsgd.codecs import exponential, linear
from horovod_gqsgd.codecs.base import Codec, Round, codecs, register_codec

__all__ = ["Codec", "Round", "codecs", "exponential", "linear", "register_codec"]
