"""Writes the options of SGLang into `tests/python/connectors/sglang_0_5_23.json`.

    python record_sglang.py [--check]

It runs in an environment with SGLang. `make test` holds the table of options against the file;
`--check` ends with status 1 where the installed SGLang has others than the file says.
"""

import json
import sys
from pathlib import Path

import sglang
from sglang.srt.arg_groups.arg_utils import namespace_of
from sglang.srt.server_args import ServerArgs

FILE = Path(__file__).parents[1] / "python" / "connectors" / "sglang_0_5_23.json"


def main() -> int:
    """Writes the file, or compares it."""
    options = {"ServerArgs": " ".join(sorted(namespace_of(ServerArgs)))}
    recorded = {"version": sglang.__version__, "options": options}
    text = json.dumps(recorded, indent=1, sort_keys=True) + "\n"
    if "--check" in sys.argv:
        same = FILE.exists() and FILE.read_text() == text
        said = "ok      {0} is what SGLang {1} has" if same else "BROKEN  {0} is not that of {1}"
        print(said.format(FILE.name, sglang.__version__))
        return int(not same)
    FILE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
