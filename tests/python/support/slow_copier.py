"""A copier whose copies take a while: their bytes move when they are polled, or told to."""

from typing import Any

from blockyard.crane.copiers import Landed


class Slow:
    """Takes copies at once, and moves the bytes of each at its second poll."""

    def __init__(self) -> None:
        self.under_way: list[_Taken] = []

    def start(self, *what: Any) -> "_Taken":
        taken = _Taken(what)
        self.under_way.append(taken)
        return taken

    def settle(self) -> None:
        for one in self.under_way:
            one.land()
        self.under_way.clear()

    def reset(self) -> None:
        self.under_way.clear()

    close = reset


class _Taken:
    def __init__(self, what: tuple[Any, ...]) -> None:
        self.what = what
        self.polls = 0
        self.landed: Landed | None = None

    def land(self) -> None:
        if self.landed is None:
            source, destination, sources, destinations = self.what
            for here, there in zip(source.planes, destination.planes, strict=True):
                there[destinations] = here[sources]
            self.landed = Landed(len(sources))

    def poll(self) -> Landed | None:
        self.polls += 1
        if self.polls > 1:
            self.land()
        return self.landed
