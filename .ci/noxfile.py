"""Tries a wheel alone in a clean environment of each Python found: `nox -- WHEEL [CONSTRAINTS]`."""

import nox

PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
nox.options.error_on_missing_interpreters = False


@nox.session(python=PYTHONS)
def smoke(session: nox.Session) -> None:
    """Runs smoke.py beside the wheel alone, and endings.py beside it and its extra `events`."""
    session.chdir(session.invoked_from)
    wheel, *constraints = session.posargs
    pinned = [word for file in constraints for word in ("--constraint", file)]
    for script, what in (("smoke", wheel), ("endings", f"{wheel}[events]")):
        session.install("--only-binary", ":all:", "--no-compile", *pinned, what)
        session.run("python", "-I", f".ci/{script}.py", wheel)
