"""Tries a wheel alone in a clean environment of each Python found: `nox -- WHEEL [CONSTRAINTS]`."""

import nox

PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
nox.options.error_on_missing_interpreters = False


@nox.session(python=PYTHONS)
def smoke(session: nox.Session) -> None:
    """Installs the wheel and what it needs, pinned where a file says so, and runs smoke.py."""
    session.chdir(session.invoked_from)
    wheel, *constraints = session.posargs
    pinned = [word for file in constraints for word in ("--constraint", file)]
    session.install("--only-binary", ":all:", "--no-compile", *pinned, wheel)
    session.run("python", "-I", ".ci/smoke.py", wheel)
