"""`blockyard doctor`: looks at the machine and at settings, and says what will fail."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from blockyard._core import BlockyardError, Misuse, __version__
from blockyard.connectors.command_line import Fault, Flags, read, split
from blockyard.shared.owner import is_foreign
from blockyard.tools.click_types import FILE, QUIET
from blockyard.tools.doctor import build, config, disk, gpu, host, pinned, sglang, stores, vllm
from blockyard.tools.doctor.engine import Engine
from blockyard.tools.doctor.finding import LEVELS, Check, Demand, Finding, Site, unknown
from blockyard.tools.endings import FAILED
from blockyard.tools.help import Once
from blockyard.tools.outputs import claim, write_all
from blockyard.yard.config import Config

__all__ = ["doctor", "examined"]

_FORMAT: Final = 1
"""Of the JSON."""
_NAMES: Final = re.compile(r"(vllm|sglang)(?=$|[.:-])")
_MARKS: Final = {"ok": "ok", "unknown": "-", "warn": "WARN", "fail": "FAIL"}
_MATTER: Final = ("warn", "fail")
Groups = dict[str, list[Finding]]
_ENGINES: Final[Mapping[str, tuple[type[Engine], Any]]] = {
    "vllm": (vllm.Serve, vllm.checks),
    "sglang": (sglang.Launch, sglang.checks),
}


@click.command(
    cls=Once, epilog="Example: blockyard doctor -- vllm serve MODEL --kv-transfer-config '{…}'"
)
@click.option("--config", "file", type=FILE, help="A TOML file for blockyard.Config.")
@click.option("--disk", "paths", type=FILE, multiple=True, help="A folder for a disk tier.")
@click.option("--vllm", metavar="FLAGS", help="Flags of vLLM, in one word; as COMMAND.")
@click.option("--sglang", metavar="FLAGS", help="Flags of SGLang, likewise.")
@click.option(
    "--json",
    "output",
    metavar="[PATH]",
    is_flag=False,
    flag_value="-",
    help="Write it as JSON; stdout without a PATH.",
)
@click.option("--strict", is_flag=True, help="Warnings end with status 1, too.")
@QUIET
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND]")
@click.pass_context
def doctor(
    ctx: click.Context,
    file: Path | None,
    paths: tuple[Path, ...],
    vllm: str | None,
    sglang: str | None,
    output: str | None,
    strict: bool,  # noqa: FBT001 - as click has it
    quiet: bool,  # noqa: FBT001 - likewise
    command: tuple[str, ...],
) -> None:
    """Look at this machine and at settings, and say what will fail before it does.

    COMMAND is a whole command line that starts vLLM or SGLang: it is read and not run. Nothing is
    loaded, and nothing stays. The exit status is 1 where something will fail. See docs/doctor.md.
    """
    given = [("vllm", vllm), ("sglang", sglang), (_engine_of(command), list(command) or None)]
    lines = [(engine, line) for engine, line in given if line is not None]
    if len(lines) > 1:
        raise Misuse("--vllm, --sglang and a COMMAND: give one of them")
    if file is not None and not file.is_file():
        raise Misuse(f"--config {file}: there is no such file")
    claim({"--json": None if output in {None, "-"} else Path(str(output))})
    found = examined(file=file, paths=paths, lines=dict(lines))
    faults = _write(output, found)
    for text in _told(found, quiet=quiet):
        click.echo(text, err=output == "-")
    if faults:
        raise Misuse(faults[0])
    worst = max(LEVELS.index(one.level) for group in found.values() for one in group)
    if worst >= LEVELS.index("warn" if strict else "fail"):
        ctx.exit(FAILED)


def examined(
    *,
    file: Path | None = None,
    paths: tuple[Path, ...] = (),
    lines: Mapping[str, str | list[str]] | None = None,
    site: Site | None = None,
) -> Groups:
    """Makes all checks; returns what they have found, by group.

    Args:
        file: Of a configuration.
        paths: Folders for disk tiers.
        lines: Command lines by their engine, "vllm" or "sglang", as text or as words.
        site: Where to look; None for this machine.
    """
    site = site or Site()
    groups: dict[str, tuple[Check, ...]] = {}
    asked = Demand(paths=tuple(path.absolute() for path in paths))
    environ = dict(site.environ)
    for engine, line in (lines or {}).items():
        flags, bare = _flags(engine, line)
        environ |= flags.environ
        kind, checks = _ENGINES[engine]
        engine_of = kind(flags, environ, bare)
        groups[engine_of.interface.engine] = checks(engine_of)
        asked = asked.joined(engine_of.asked())
    if file is not None:
        settings = _read(file)
        groups["configuration"] = config.checks(file, settings)
        if isinstance(settings, Config):
            asked = asked.joined(config.asked_of(settings))
    site = replace(site, asked=asked, environ=environ)
    groups["installation"] = build.CHECKS
    groups["machine"] = host.CHECKS + pinned.CHECKS
    groups["GPU"] = gpu.CHECKS
    if asked.paths:
        groups["disk"] = disk.checks(site)
    if asked.stores:
        groups["stores"] = stores.checks(site)
    return {name: list(_made(checks, site)) for name, checks in groups.items()}


def _engine_of(command: tuple[str, ...]) -> str:
    """Which engine a command line starts: the first word that names one says it."""
    for word in command:
        found = _NAMES.match(Path(word).name)
        if found is not None:
            return found[0]
    return "vllm"


def _flags(engine: str, given: str | list[str]) -> tuple[Flags, bool]:
    try:
        words, bare = split(given) if isinstance(given, str) else (given, False)
    except Fault as fault:
        return Flags(faults=[fault]), False
    return read(engine, words), bare


def _read(file: Path) -> Config | BlockyardError:
    try:
        return Config.read(file)
    except BlockyardError as error:
        return error


def _made(checks: tuple[Check, ...], site: Site) -> Iterator[Finding]:
    """Makes checks; one that meets what nobody has thought of says so, and the others go on."""
    for check in checks:
        name = getattr(check, "func", check).__name__
        try:
            yield check(site)
        except Exception as error:
            if is_foreign(error):
                raise
            yield unknown(name, f"it cannot be looked at: {type(error).__name__}: {error}")


def _write(output: str | None, found: Groups) -> list[str]:
    """Writes the JSON; returns why that was not possible, to be raised once all is shown."""
    if output is None:
        return []
    content: dict[str, Any] = {"format": _FORMAT, "blockyard": __version__}
    content["groups"] = {name: [one._asdict() for one in group] for name, group in found.items()}
    text = json.dumps(content, indent=2)
    if output == "-":
        click.echo(text)
        return []
    return write_all({Path(output): f"{text}\n".encode()})


def _told(found: Groups, *, quiet: bool) -> Iterator[str]:
    """The findings as lines, and how many there are of those that matter; quiet, these alone."""
    for group, findings in found.items():
        shown = [one for one in findings if one.level in _MATTER or not quiet]
        yield from [group] if shown else []
        for one in shown:
            yield f"  {_MARKS[one.level]:<4}  {one.name}: {one.fact}"
            if one.level in _MATTER:
                yield f"        {one.means}"
                yield f"        -> {one.do}"
    levels = [one.level for group in found.values() for one in group]
    failed, warned = levels.count("fail"), levels.count("warn")
    yield f"{failed} will fail, {warned} to look at, {len(levels)} checks"
