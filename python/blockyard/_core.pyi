"""Block bookkeeping in Rust; the public names are those of the package `blockyard`."""

__all__ = ["__version__"]

__version__: str
