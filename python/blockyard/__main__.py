"""`blockyard` and `python -m blockyard`: the command line."""

from blockyard.tools.cli import cli

__all__ = ["main"]


def main() -> None:
    """Runs the command line, and exits."""
    cli.main(prog_name="blockyard")


if __name__ == "__main__":
    main()
