"""What the compressors of all frameworks have in common: their parameters, and the bare class."""

from typing import Any

from horovod_gqsgd.config import Config


class Dual:
    """A method of the instance, and of the default instance when called on the class."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: Any, owner: Any) -> Any:
        return self.function.__get__(owner.default if instance is None else instance)


class _WithDefault(type):
    """Lets the bare class stand where Horovod takes a compressor: it acts as an instance."""

    _default: Any = None

    @property
    def default(cls) -> Any:
        """The instance with default parameters; the environment is read at first use."""
        if cls._default is None:
            cls._default = cls()
        return cls._default


class Configured(metaclass=_WithDefault):
    """A compressor with the parameters of `horovod_gqsgd.Config`, comparable and hashable."""

    def __init__(self, **parameters: Any) -> None:
        self.config = Config.from_environment(parameters)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.config.arguments()})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self.config == other.config

    def __hash__(self) -> int:
        return hash(self.config)
