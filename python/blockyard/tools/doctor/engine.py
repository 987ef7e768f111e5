"""What the command lines of all engines have in common."""

import difflib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import metadata
from typing import Any, ClassVar, Final

from blockyard._core import BlockyardError
from blockyard.connectors.command_line import Fault, Flags, known
from blockyard.connectors.interface import Interface
from blockyard.shared.extras import install
from blockyard.shared.validate import shown
from blockyard.tools.doctor.finding import Asked, Check, Finding, Site, unknown
from blockyard.tools.doctor.model import Model, Wanted

__all__ = ["Engine", "told"]

_NEAR: Final = 0.85
"""How alike a flag must be to one that the engine has, so that it was meant."""
_DO: Final = re.compile(
    r"(.*?)[;:,.] ((?:write|[gG]ive|leave|start|did you mean|use|change|must|remove|make|set)\b.*)"
)
"""A refusal: what is wrong, and what to do."""


def told(name: str, wrong: Iterable[tuple[str, str]], means: str, fine: str) -> Finding:
    """Returns all that is wrong, with what to write for each, or that all is well."""
    found = list(wrong)
    if not found:
        return Finding(name, "ok", fine)
    facts, lines = ("; ".join(texts) for texts in zip(*found, strict=True))
    return Finding(name, "fail", facts, means, lines)


@dataclass(frozen=True)
class Engine(ABC):
    """What an engine is to do, and what follows from it.

    Args:
        flags: Its command line.
        environ: The variables that it will have.
        bare: Whether JSON stood without quotes in its text.
    """

    package: ClassVar[str]
    interface: ClassVar[Interface]
    means: ClassVar[str]
    """What follows where what is here refuses something."""

    flags: Flags
    environ: Mapping[str, str]
    bare: bool = False

    @cached_property
    def version(self) -> str | None:
        """The engine's, where it is installed."""
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return None

    @property
    @abstractmethod
    def wanted(self) -> Wanted:
        """What its flags say of the model."""

    @property
    @abstractmethod
    def workers(self) -> int:
        """Processes of one replica that compute."""

    @property
    @abstractmethod
    def replicas(self) -> int:
        """Replicas on this machine."""

    @property
    @abstractmethod
    def extra(self) -> Mapping[str, Any]:
        """What is said to what is here, by its keys."""

    @property
    @abstractmethod
    def read(self) -> object:
        """What is made of all that is said, or why it is refused."""

    @abstractmethod
    def alone(self, name: str) -> BlockyardError | None:
        """Why one key is refused, where the others are sound."""

    @property
    @abstractmethod
    def line(self) -> str:
        """What to write where a refusal does not say it."""

    @property
    def sound(self) -> str:
        """What to say of settings that are accepted."""
        return "they go together"

    @abstractmethod
    def asked(self) -> Asked:
        """What the machine is to have."""

    @abstractmethod
    def instead(self, flag: str, value: str | None) -> str | None:
        """What to write in place of a flag that is none, and may be an option of ours."""

    @cached_property
    def model(self) -> Model | str:
        """What the model's configuration says, or why it says nothing."""
        return self.wanted.look()

    def refusal(self, name: str, error: BlockyardError) -> Finding:
        """Returns a refusal as a finding: what to do comes last in its message."""
        text = " ".join(str(error).split())
        parts = _DO.fullmatch(text)
        fact, do = (text, self.line) if parts is None else parts.groups()
        return Finding(name, "fail", fact, self.means, do)

    def keys(self) -> Iterator[Check]:
        """Gives the checks of what is said, one by one."""
        return (partial(self._key, name) for name in self.extra)

    def _key(self, name: str, _: Site) -> Finding:
        error = self.alone(name)
        if error is None:
            return Finding(f'"{name}"', "ok", shown(self.extra[name]))
        return self.refusal(f'"{name}"', error)

    def settings(self, _: Site) -> Finding:
        """All keys together."""
        if not isinstance(self.read, BlockyardError):
            return Finding("settings", "ok", self.sound)
        if any(self.alone(name) for name in self.extra):
            return unknown("settings", "one of the keys above is wrong")
        return self.refusal("settings", self.read)

    def is_refused(self, *flags: str) -> bool:
        """Whether one of some flags has a value that the engine does not take."""
        return any(fault.flag in flags for fault in self.flags.faults)

    def checks(self, *, stops: str) -> list[Check]:
        """Returns the checks of its flags, and of what all engines need.

        Args:
            stops: What follows where the engine refuses something.
        """
        faults: list[Check] = [partial(_fault, fault, stops) for fault in self.flags.faults]
        faults += [partial(_strange, self, flag, stops) for flag in self.flags.unknown]
        return [*faults, *([_bare] if self.bare else []), partial(_installed, self)]


def _fault(fault: Fault, stops: str, _: Site) -> Finding:
    return Finding("flags", "fail" if fault.sure else "warn", str(fault), stops, fault.do)


def _strange(engine: Engine, flag: str, stops: str, _: Site) -> Finding:
    """A flag that the engine has not; another version of it may have it."""
    tested = engine.interface.tested[-1]
    sure = engine.version in {None, tested}
    fact = f"{flag}: {engine.interface.engine} {tested} has no such flag"
    near = difflib.get_close_matches(
        flag.replace("_", "-"), known(engine.package), n=1, cutoff=_NEAR
    )
    start = f"--{flag.lstrip('-')}-"
    near = near or [one for one in known(engine.package) if one.startswith(start)]
    joined = re.fullmatch(r"(-[a-z]+)(\d+)", flag)
    if joined is not None and joined[1] in known(engine.package):
        near = [f"{joined[1]} {joined[2]}"]
    do = f"write {near[0]}" if near else engine.instead(flag, engine.flags.unknown[flag])
    return Finding("flags", "fail" if sure else "warn", fact, stops, do or "leave it out")


def _bare(_: Site) -> Finding:
    """JSON without quotes: it came out of the quotes of an option, or it is a script's."""
    lost = "a shell takes the quotes of the JSON away, and the engine does not start"
    do = "where this stands in a script, write single quotes around it: '{…}'"
    return Finding("quotes", "warn", "JSON stands without quotes around it", lost, do)


def _installed(engine: Engine, _: Site) -> Finding:
    """The engine, and whether what is here was tested with it."""
    name, tested = engine.package, ", ".join(engine.interface.tested)
    if engine.version is None:
        return unknown(name, f"{engine.interface.engine} is not here: it is taken for {tested}")
    if engine.version in engine.interface.tested:
        return Finding(name, "ok", engine.version)
    # To compare what it has would take its imports: that is done at the start.
    fact = f"{engine.version}, and tested was {tested}"
    late = "it starts if what is touched of it is the same, and names what differs"
    return Finding(name, "warn", fact, late, install(name))
