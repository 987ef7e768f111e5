"""A real Prometheus, and what dashboards and rules ask it."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen

DEPLOY: Final = Path(__file__).parents[3] / "deploy"


class Prometheus:
    """A Prometheus that scrapes a port five times a second.

    Args:
        binary: Where it is.
        folder: For its files.
        target: Host and port that it scrapes.
        rules: What it computes.
    """

    def __init__(self, binary: str, folder: Path, target: tuple[str, int], rules: Path) -> None:
        example = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
        settings = example.replace("127.0.0.1:9464", f"{target[0]}:{target[1]}")
        settings = settings.replace("scrape_interval: 10s", "scrape_interval: 200ms")
        assert settings.count(str(target[1])) == settings.count("200ms") == 1
        (folder / "prometheus.yml").write_text(settings)
        (folder / "rules.yml").write_text(rules.read_text())
        self._log = folder / "log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(  # noqa: S603 - the one to test with
                [
                    binary,
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    "--web.listen-address=127.0.0.1:0",
                ],
                stdout=log,
                stderr=log,
            )
        self._url = ""

    def url(self) -> str:
        """Where it is asked: it takes a port that is free, and says which."""
        if not self._url:
            found = re.search(r'Listening on".*?address=(127\.0\.0\.1:\d+)', self._log.read_text())
            assert self.process.poll() is None, self._log.read_text()
            self._url = f"http://{found[1]}" if found else ""
        return self._url

    def ask(self, query: str) -> list[Any]:
        """The rows of an answer; none while it does not listen yet."""
        try:
            with urlopen(f"{self.url()}/api/v1/query?query={quote(query)}", timeout=20) as answer:  # noqa: S310
                rows: list[Any] = json.load(answer)["data"]["result"]
                return rows
        except (URLError, ValueError):
            return []

    def close(self) -> None:
        """Ends it."""
        self.process.terminate()
        self.process.wait(20)


def panels_of(path: Path) -> list[dict[str, Any]]:
    """The panels of a dashboard."""
    panels: list[dict[str, Any]] = json.loads(path.read_text())["panels"]
    return panels


def queries(panel: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What a panel asks as Grafana sends it, and the legend."""
    for target in panel["targets"]:
        asked = target["expr"].replace("$__rate_interval", "5s")
        yield re.sub(r"\$(engine|instance)", ".*", asked), target["legendFormat"]
