"""Lines of the log: how often they are written, and that none of them raises."""

import logging
import re
from pathlib import Path

import pytest

import blockyard
from blockyard._typing import override
from blockyard.shared.log import Limited, described


class Handler(logging.Handler):
    """Keeps what it is given, and raises once it has been told to."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.error: BaseException | None = None

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if self.error is not None:
            raise self.error
        self.lines.append(record.getMessage())


@pytest.fixture
def handler() -> Handler:
    logger, handler = logging.getLogger("blockyard.test_log"), Handler()
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    return handler


def test_a_message_is_written_once_a_second_and_the_others_are_counted(handler: Handler) -> None:
    now = [0.0]
    log = Limited("blockyard.test_log", 1.0, lambda: now[0])
    for number in range(4):
        log.warning("number %d", number)
    now[0] = 1.0
    log.warning("number %d", 4)
    assert handler.lines == ["number 0", "number 4 (and 3 more like it)"]


def test_a_log_without_a_limit_writes_all(handler: Handler) -> None:
    log = Limited("blockyard.test_log", 0)
    log.info("a %s", 1)
    log.info("a %s", 2)
    log.debug("b")
    assert handler.lines == ["a 1", "a 2", "b"]


@pytest.mark.parametrize("error", [OSError("the log is gone"), SystemExit(), GeneratorExit()])
@pytest.mark.parametrize("seconds", [0, 1.0])
def test_no_line_raises_where_a_handler_or_a_filter_does(
    handler: Handler, seconds: float, error: BaseException
) -> None:
    log = Limited("blockyard.test_log", seconds)
    handler.error = error
    for write in (log.debug, log.info, log.warning, log.exception):
        write("lost")
    handler.error = None
    log.warning("written")
    assert handler.lines == ["written"]

    def refuse(_: logging.LogRecord) -> bool:
        raise KeyError

    logging.getLogger("blockyard.test_log").addFilter(refuse)
    try:
        log.warning("lost, too")
    finally:
        logging.getLogger("blockyard.test_log").removeFilter(refuse)


def test_an_error_without_text_is_described_by_its_kind() -> None:
    class Mute(Exception):
        @override
        def __str__(self) -> str:
            raise RuntimeError

    assert described(OSError("gone")) == "OSError: gone"
    assert described(Mute()) == "Mute"


def test_all_lines_go_through_it() -> None:
    package = Path(blockyard.__file__).parent
    others = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if re.search(r"\blogging\.|import logging|warnings\.warn\b", path.read_text())
    }
    assert others == {"shared/log.py"}
