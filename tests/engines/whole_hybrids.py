"""The whole of vLLM with tiny hybrid models on a CPU: squeezed, they answer as with ample memory.

    python whole_hybrids.py [MODEL …]       all runs of these models; of all without a name. With
                                            RUNS="alone;parked" in the environment, these alone
    python whole_hybrids.py --one MODEL OUT all runs of one model; the results go to the file OUT

It runs in the environment that `setup_cpu.py` makes, in a process for each model, with vLLM's
hybrid manager on. Every run answers six requests, some twice: the second time after a reset of
vLLM's prefix cache, so that what is not computed came from below.
"""

import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from hybrid_models import MODELS, VOCABULARY, write

LENGTHS, MOST, BLOCK, LONGEST = (60, 67, 74, 81, 88, 95), 120, 32, 320
DRAWN, AMPLE = {"float32": 6, "bfloat16": 14}, 1600
"""Prompts that are drawn of each length; and blocks that are ample for all of them at once."""
ENVIRONMENT = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE": "1",
}


class Run(NamedTuple):
    """What one engine does.

    Attributes:
        ample: Has it ample memory?
        below: The operator's words; None without this connector.
        rounds: How often it answers.
        faults: Do copies up fail, and bits flip between the rounds?
        sparse: Does vLLM name few states, as it does where it is not told otherwise?
        more: What vLLM is told.
    """

    ample: bool = False
    below: dict[str, Any] | None = None
    rounds: int = 2
    faults: bool = False
    sparse: bool = False
    more: dict[str, Any] = {}  # noqa: RUF012 - never changed


KEPT = {"keep_on_reset": True}
HOST = KEPT | {"host": "96 MiB"}
DISK = KEPT | {"host": "24 MiB", "disk": "96 MiB", "namespace": {"weights": "v1"}}
TWO = {"tensor_parallel_size": 2}
RUNS = {
    "alone": Run(rounds=1),
    "parked": Run(below=HOST),
    "parked, asynchronous": Run(below=HOST, more={"async_scheduling": True}),
    "parked, with faults": Run(below=HOST, faults=True),
    "to a disk": Run(below=DISK, rounds=1),
    "from the disk": Run(below=DISK, rounds=1),
    "parked, sparse": Run(below=HOST, sparse=True),
    "parked, two workers": Run(below=HOST, more=TWO),
}
"""The disk outlives one engine, and is found by the next."""


class Engine:
    """vLLM's engine, whose scheduler is watched.

    Args:
        model: Its name.
        run: What it does.
        disk: Where it keeps what it keeps on a disk.
    """

    def __init__(self, model: str, run: Run, disk: Path) -> None:
        from vllm import LLM
        from vllm.config import KVTransferConfig

        kind = MODELS[model]
        more = {"max_num_seqs": 8} | kind.options | run.more
        if kind.states and not run.sparse:
            # vLLM names the states of all boundaries, and not that of the prompt's last alone.
            more["prefix_cache_retention_interval"] = None
        if run.below is not None:
            below = dict(run.below) | ({"disk_path": str(disk)} if "disk" in run.below else {})
            more["kv_transfer_config"] = KVTransferConfig(
                kv_connector="Blockyard", kv_role="kv_both", kv_connector_extra_config=below
            )
        folder = Path(tempfile.gettempdir()) / f"blockyard-{model}"
        write(model, folder)
        self.vllm: Any = LLM(
            model=str(folder),
            skip_tokenizer_init=True,
            dtype=kind.dtype,
            block_size=BLOCK,
            num_gpu_blocks_override=AMPLE if run.ample else kind.squeezed,
            max_model_len=LONGEST,
            enable_prefix_caching=True,
            enforce_eager=True,
            seed=0,
            **more,
        )
        core = self.vllm.llm_engine.engine_core
        self.scheduler: Any = core.engine_core.scheduler
        self.front = None if run.below is None else self.scheduler.connector.front
        self.reached: dict[str, int] = {}
        """The last token of each request that was computed."""
        self.seen: dict[str, Any] = {}
        self._inner = self.scheduler.schedule
        self.scheduler.schedule = self._schedule

    def _schedule(self, *what: Any, **named: Any) -> Any:
        output = self._inner(*what, **named)
        seen = self.seen
        seen["computed"] += output.total_num_scheduled_tokens
        seen["preempted"] += len(output.preempted_req_ids or ())
        loading = sum(
            one.status.name == "WAITING_FOR_REMOTE_KVS" for one in self.scheduler.requests.values()
        )
        seen["at once"] = max(seen["at once"], len(self.scheduler.running) + loading)
        for name, count in output.num_scheduled_tokens.items():
            end = self.scheduler.requests[name].num_computed_tokens
            again = self.reached.get(name, 0) - (end - count)
            if again > 0:
                seen["again"].append(again)
            self.reached[name] = end
        return output

    def answer(self, prompts: list[list[int]], *, told: bool = False) -> dict[str, Any]:
        """Answers prompts; returns the tokens, and what happened.

        Args:
            prompts: They are asked at once.
            told: Also how far the two likeliest tokens were apart, at the nearest.
        """
        from vllm import SamplingParams

        self.seen = {"computed": 0, "preempted": 0, "at once": 0, "again": []}
        params = SamplingParams(
            max_tokens=MOST,
            temperature=0,
            ignore_eos=True,
            detokenize=False,
            logprobs=2 if told else None,
        )
        began = time.monotonic()
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        said = [one.outputs[0] for one in self.vllm.generate(asked, params, use_tqdm=False)]
        self.seen["seconds"] = round(time.monotonic() - began, 1)
        answered = self.seen | {"tokens": [list(one.token_ids) for one in said]}
        if told:
            answered["gaps"] = [list(map(gap, one.logprobs)) for one in said]
        return answered

    def settle(self) -> None:
        """Steps until no copy is in the air, and some more."""
        quiet = 0
        while quiet < 5:
            self.vllm.llm_engine.step()
            flying = self.front is not None and any(one["flights"] for one in self.stats())
            quiet = 0 if flying else quiet + 1

    @property
    def caches(self) -> list[Any]:
        """The bookkeeping of each group of layers."""
        return [] if self.front is None else list(self.front.connector.caches)

    def stats(self) -> list[dict[str, int]]:
        """The numbers of each."""
        return [cache.stats() for cache in self.caches]

    def facts(self) -> dict[str, Any]:
        """What vLLM has made of the model."""
        config = self.vllm.llm_engine.vllm_config
        groups = self.scheduler.kv_cache_config.kv_cache_groups
        return {
            "groups": [type(group.kv_cache_spec).__name__ for group in groups],
            "block": config.cache_config.block_size,
            "hybrid": not config.scheduler_config.disable_hybrid_kv_cache_manager,
        }

    def close(self) -> None:
        """Ends it."""
        self.vllm.llm_engine.engine_core.shutdown()
        self.vllm = self.scheduler = self.front = self._inner = None
        gc.collect()


def gap(likely: dict[int, Any]) -> float:
    """How far the two likeliest tokens are apart."""
    first, second, *_ = sorted((one.logprob for one in likely.values()), reverse=True)
    return float(first - second)


@contextmanager
def failing(*, fail: bool) -> Iterator[list[int]]:
    """Has every third copy up fail, of whichever group; counts them."""
    from blockyard.crane.copiers import Landed
    from blockyard.crane.copiers.threads import ThreadCopier
    from blockyard.shared.plan import Cause

    start, failed, seen = ThreadCopier.start, [0], [0]

    class Failed:
        def poll(self) -> Landed:
            return Landed(0, Cause.FAILED)

    def start_or_fail(self: Any, source: Any, destination: Any, *slots: Any) -> Any:
        if destination.name == "device":
            seen[0] += 1
            if seen[0] % 3 == 0:
                failed[0] += 1
                return Failed()
        return start(self, source, destination, *slots)

    if fail:
        ThreadCopier.start = start_or_fail  # type: ignore[method-assign]
    try:
        yield failed
    finally:
        ThreadCopier.start = start  # type: ignore[method-assign]


def flip() -> int:
    """Flips a bit of every other block on the host, of each group in turn; returns how many."""
    import numpy as np
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    flipped = 0
    for at, crane in enumerate(get_kv_transfer_group().back.worker.cranes.values()):
        tier = crane._tiers["host"]
        sums = crane.copiers["device", "host"].sums
        for plane, known in sums._known.items():
            if plane[0] == "host":
                slots = np.flatnonzero(known)[at % 2 :: 2]
                (bytes_,) = tier.planes
                bytes_[slots, ..., 0] ^= 1
                flipped += len(slots)
    return flipped


def answers(model: str, run: Run, prompts: list[list[int]], disk: Path) -> dict[str, Any]:
    """Answers in one engine, as a run says."""
    began = time.monotonic()
    rounds = []
    with failing(fail=run.faults) as failed, closing(Engine(model, run, disk)) as engine:
        facts: dict[str, Any] = engine.facts()
        for number in range(run.rounds):
            rounds.append(engine.answer(prompts))
            engine.settle()
            if run.faults and number == 0:
                facts["flipped"] = flip()
            engine.scheduler.reset_prefix_cache()
        facts |= {"failed": failed[0], "stats": engine.stats()}
        facts["audits"] = [str(cache.audit()) for cache in engine.caches]
        if engine.front is not None:
            facts["restored"] = engine.front.restored
    return facts | {"rounds": rounds, "seconds": round(time.monotonic() - began, 1)}


def choose(model: str, disk: Path, **more: Any) -> tuple[list[list[int]], dict[str, Any]]:
    """Answers with ample memory; returns prompts, and what is right of them.

    Of each length it is the prompt whose likeliest tokens are never near each other: another order
    of sums must not choose another token.

    Args:
        model: Its name.
        disk: As in `Engine`.
        **more: What vLLM is told.
    """
    import numpy as np

    draw, count = np.random.default_rng(3), DRAWN[MODELS[model].dtype]
    drawn = [
        draw.integers(3, VOCABULARY, size=length + MODELS[model].longer).tolist()
        for length in LENGTHS
        for _ in range(count)
    ]
    began = time.monotonic()
    run = Run(ample=True, more={"max_num_seqs": len(drawn)} | more)
    with closing(Engine(model, run, disk)) as engine:
        gaps = engine.answer(drawn, told=True)["gaps"]
        best = [
            max(range(at, at + count), key=lambda number: min(gaps[number]))
            for at in range(0, len(drawn), count)
        ]
        prompts = [drawn[number] for number in best]
        engine.scheduler.reset_prefix_cache()
        ample = engine.facts() | {"rounds": [engine.answer(prompts)]}
    ample["gaps"] = [gaps[number] for number in best]
    return prompts, ample | {"seconds": round(time.monotonic() - began, 1)}


def all_of(model: str) -> dict[str, Any]:
    """Plays all runs of a model; what a run ends with is its result, too."""
    disk, kind = Path(tempfile.mkdtemp(prefix="blockyard-disk-")), MODELS[model]
    try:
        prompts, ample = choose(model, disk)
        done: dict[str, Any] = {"ample": ample}
        only = list(filter(None, os.environ.get("RUNS", "").split(";")))
        for name, run in RUNS.items():
            apt = (kind.states or not run.sparse) and (kind.split or run.more != TWO)
            if not (name in only if only else apt):
                continue
            try:
                asked, right = prompts, ample
                if run.more == TWO and kind.dtype != "float32":
                    # Two halves of a sum are rounded first, so that other tokens are right.
                    asked, right = choose(model, disk, **TWO)
                done[name] = answers(model, run, asked, disk) | {"right": right}
            except Exception as error:  # noqa: BLE001 - whatever it is, it is shown
                done[name] = {"error": f"{type(error).__name__}: {error}"}
    finally:
        shutil.rmtree(disk)
    return done


def judge(model: str, name: str, result: dict[str, Any], alone: int) -> list[str]:
    """What is wrong with a run.

    Args:
        model: Its model's name.
        name: Its name.
        result: What it did.
        alone: How many requests were there at once without this connector.
    """
    run, first, last = RUNS[name], result["rounds"][0], result["rounds"][-1]
    right = result["right"]["rounds"][0]
    wrong = [
        astray(number, at, one["tokens"][at], result["right"])
        for number, one in enumerate(result["rounds"])
        for at in range(len(LENGTHS))
        if one["tokens"][at] != right["tokens"][at]
    ]
    if not result["hybrid"] or result["groups"] != result["right"]["groups"]:
        wrong.append(f"vLLM has other groups: {result['groups']}")
    if not first["preempted"]:
        wrong.append("nothing was preempted: this shows nothing")
    if run.below is None:
        return wrong
    most = result["block"] if MODELS[model].states else 0
    if not (run.faults or run.sparse) and max(first["again"], default=0) > most:
        wrong.append(f"computed again: {first['again']}")
    if name != "from the disk" and first["at once"] < alone:
        # What is found is there at once, and not a part at a time.
        wrong.append(f"{first['at once']} at once: fewer than without the connector")
    # Of two rounds, the second has what the first has computed; the other engine's disk, likewise.
    before = right["computed"] if name == "from the disk" else first["computed"]
    if not run.faults and name != "to a disk" and last["computed"] >= before:
        wrong.append("nothing came from below")
    return wrong + counted_wrong(run, result)


def astray(number: int, at: int, said: list[int], right: dict[str, Any]) -> str:
    """Says where a request's tokens are others than with ample memory."""
    pairs = enumerate(zip(said, right["rounds"][0]["tokens"][at], strict=True))
    place = next(place for place, (one, other) in pairs if one != other)
    return (
        f"round {number + 1}: request {at} goes astray at token {place}, where the two likeliest "
        f"are {right['gaps'][at][place]:.3f} apart"
    )


def counted_wrong(run: Run, result: dict[str, Any]) -> list[str]:
    """What is wrong with the numbers of the groups of layers."""
    wrong, stats = [], result["stats"]
    idle = [at for at, one in enumerate(stats) if not one["device_in"]]
    if idle:
        wrong.append(f"no block has come up in groups {idle}")
    if run.below == DISK and not all(one["disk_in"] + one["disk_out"] for one in stats):
        wrong.append("a group has moved nothing to the disk, nor from it")
    if run.faults and not (result["failed"] and sum(one["corrupt"] for one in stats)):
        wrong.append("no copy failed, or no bit was found flipped")
    if any(one["leaked"] or one["flights"] for one in stats):
        wrong.append("a group leaks")
    if set(result["audits"]) != {"None"}:
        wrong.append(f"the audit: {result['audits']}")
    return wrong


def told(name: str, result: dict[str, Any]) -> str:
    """What a run did, in a line."""
    rounds = result["rounds"]
    said = f"{name:22} computed {' and '.join(format(one['computed'], ',') for one in rounds)}"
    said += f", {rounds[0]['at once']} at once"
    if any(one["preempted"] for one in rounds):
        said += f", preempted {' and '.join(str(one['preempted']) for one in rounds)}"
    if any(one["again"] for one in rounds):
        said += f", again at most {max(max(one['again'], default=0) for one in rounds)}"
    if stats := result.get("stats"):
        said += f", up {sum(one['device_in'] for one in stats)} blocks"
        if corrupt := sum(one["corrupt"] for one in stats):
            said += f", {corrupt} found corrupt"
    for what in ("failed", "restored", "flipped"):
        if result.get(what):
            said += f", {result[what]} {what}"
    return f"{said}, {result['seconds']} s"


def play(model: str, folder: Path) -> int:
    """Plays a model's runs in a process of its own; returns how many are broken."""
    out = folder / f"{model}.json"
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, "--one", model, str(out)],
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    if ran.returncode != 0:
        said = [line for line in ran.stderr.splitlines() if line.strip()]
        print(f"{model}: BROKEN: {said[-1] if said else ran.returncode}")
        return 1
    done = dict(json.loads(out.read_text()))
    ample = done["ample"]
    print(f"{model}: blocks of {ample['block']} tokens, groups {', '.join(ample['groups'])}")
    print(f"  {told('ample', ample)}; the two likeliest {min(map(min, ample['gaps'])):.3f} apart")
    broken, alone = 0, done["alone"]["rounds"][0]["at once"]
    for name, result in done.items():
        if name == "ample":
            continue
        wrong = [result["error"]] if "error" in result else judge(model, name, result, alone)
        broken += bool(wrong)
        line = name if "error" in result else told(name, result)
        print(f"  {line}: {'BROKEN: ' + '; '.join(wrong) if wrong else 'the same tokens'}")
    return broken


def main() -> int:
    """Plays the models' runs, and compares."""
    if sys.argv[1:2] == ["--one"]:
        Path(sys.argv[3]).write_text(json.dumps(all_of(sys.argv[2])))
        return 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        broken = sum(play(model, Path(folder)) for model in sys.argv[1:] or MODELS)
    print(f"{broken} broken, in {(time.monotonic() - began) / 60:.1f} minutes")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
