"""`blockyard` and `python -m blockyard`: the command line."""

import sys

from blockyard.tools.endings import INTERRUPTED
from blockyard.tools.streams import guard

__all__ = ["main"]


def main() -> None:
    """Runs the command line, and exits."""
    streams = guard()
    status = 0
    try:
        # Imports take their time too, and Ctrl-C may come meanwhile.
        from blockyard.tools.cli import cli  # noqa: PLC0415 - see above

        cli.main(prog_name="blockyard")
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 0
    except KeyboardInterrupt:
        sys.stderr.write("blockyard: interrupted\n")
        status = INTERRUPTED
    sys.exit(streams.status(status))


if __name__ == "__main__":
    main()
