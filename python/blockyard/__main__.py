"""`blockyard` and `python -m blockyard`: the command line, which needs the extra `replay`."""

import sys
from importlib.util import find_spec
from typing import Final

__all__ = ["main"]

_EXTRA: Final = ("click", "msgspec", "plotly", "rich")


def main() -> None:
    """Runs the command line; never returns."""
    missing = [name for name in _EXTRA if find_spec(name) is None]
    if missing:
        sys.stderr.write(
            f"blockyard: {' and '.join(missing)} missing: pip install 'blockyard[replay]'\n"
        )
        sys.exit(2)
    # Only now: the library itself has none of these.
    from blockyard.cli import cli  # noqa: PLC0415

    cli.main(prog_name="blockyard")


if __name__ == "__main__":
    main()
