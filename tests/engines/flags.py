"""Asks vLLM's own parser and configuration what `blockyard doctor` says of command lines.

It runs in an environment with vLLM: what doctor names as refused by vLLM is refused there, and what
it passes is taken. What vLLM leaves of the number of replicas is looked at, too.
"""

import contextlib
import io
import os
import pickle
import shlex
import sys
import tempfile
from pathlib import Path

import vllm.platforms
from vllm.platforms.cpu import CpuPlatform

vllm.platforms._current_platform = CpuPlatform()
sys.path.insert(0, str(Path(__file__).parents[1] / "python/support"))

from vllm.config import ParallelConfig  # noqa: E402
from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: E402 - behind the platform
from vllm.entrypoints.common.cli_args import (  # noqa: E402
    make_arg_parser,
    validate_parsed_serve_args,
)
from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: E402

from blockyard.connectors.vllm.replicas import Replica, replica_of  # noqa: E402
from wrong_flags import GOOD, TAKEN, WRONG_FLAGS, files  # noqa: E402


def refused(line: str) -> str | None:
    """Why vLLM refuses a command line; None where it takes it."""
    parser = FlexibleArgumentParser(prog="vllm")
    make_arg_parser(parser.add_subparsers(dest="subparser").add_parser("serve"))
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            given = parser.parse_args(shlex.split(line)[1:])
            given.model = given.model_tag or given.model
            validate_parsed_serve_args(given)
            AsyncEngineArgs.from_cli_args(given).create_engine_config()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, vLLM does not start
        return str(error) if not isinstance(error, SystemExit) else said.getvalue()
    return None


def replica() -> Replica:
    """What the fourth of four replicas of a model without experts knows, without a command line."""
    parallel = ParallelConfig(data_parallel_size=4, data_parallel_rank=0)
    parallel = pickle.loads(pickle.dumps(parallel))
    parallel.data_parallel_index = 3
    parallel.reconfigure_for_independent_dp_rank()
    return replica_of(parallel, "an engine_dp3", [])


def main() -> int:
    """Ends with status 1 where vLLM has another opinion."""
    broken = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, text in files().items():
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).write_text(text)
        lines = dict.fromkeys(WRONG_FLAGS, True) | dict.fromkeys(("", *TAKEN), False)
        for line, wrong in lines.items():
            why = refused(line if line.startswith("vllm") else f"{GOOD} {line}")
            if (why is not None) != wrong:
                broken += 1
                print(f"BROKEN  {line or 'the sound line'}: {why or 'vLLM takes it'}")
        if replica() != Replica(3, 4, 4):
            broken += 1
            print(f"BROKEN  vLLM leaves no number of replicas: {replica()}")
        print(f"{'BROKEN' if broken else 'ok    '}  {len(lines)} command lines, as doctor has them")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
