"""The KV cache of an inference engine: which block lives where, and who may use it."""

from blockyard._core import __version__

__all__ = ["__version__"]
