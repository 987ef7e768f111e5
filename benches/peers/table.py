"""The rows, the goals, and the one table that is printed."""

from collections.abc import Iterable, Mapping
from statistics import median
from types import MappingProxyType
from typing import Any, NamedTuple

OURS = "blockyard"
VLLM, XXHASH, ARC = "vllm", "vllm, xxhash", "vllm, ARC"
RUST, PYTHON, LEGACY = "sglang, Rust tree", "sglang, Python tree", "sglang, RadixCache"
DYNAMO = "dynamo"
INSIDE, OFFLOADING = "blockyard in vLLM", "vllm, OffloadingConnector"
SIMPLE = "vllm, SimpleCPUOffloadConnector"
DISK, DISK_VLLM = "blockyard's disk", "vllm, tier fs"
DISK_LOCAL, DISK_DIRECT = "lmcache, local_disk", "lmcache, local_disk, use_odirect"
DISK_NATIVE = "lmcache, fs_native, use_odirect"


class Spec(NamedTuple):
    """A row: the request to a side, and how its answer is read."""

    what: str
    row: str
    sides: tuple[str, ...]
    asked: Mapping[str, Any] = MappingProxyType({})
    stat: str = "median"
    """`median` of a round's mean; `told` by operations; `worst` of a round; `beside`, the share of
    its speed that it keeps beside a busy thread, over the share that `Control` keeps there; or
    `two` and `memory`."""
    goals: Mapping[str, float] = MappingProxyType({})
    """The least ratio of a side's figure to Blockyard's, by side."""
    least: float | None = None
    """The least that Blockyard's own figure may be."""
    wall: tuple[str, ...] = ()
    """Sides judged by elapsed time, since they work on another thread."""
    warm: int = 1
    ours: str = OURS
    """The side that is Blockyard's."""


TREES = (RUST, PYTHON, LEGACY)
FULL, LARGE = {"blocks": 100_000}, {"blocks": 1_000_000}
ADMIT = {VLLM: 35.0, RUST: 10.0}
#: With room made ahead.
AHEAD = {VLLM: 25.0, RUST: 10.0}
ROWS: dict[str, Spec] = {
    "keys": Spec(
        "keys of 4,096 tokens, per block", "keys", (VLLM, XXHASH, DYNAMO), goals={VLLM: 8}
    ),
    "match": Spec(
        "match of 64 blocks",
        "match",
        (VLLM, *TREES, DYNAMO),
        FULL,
        goals={DYNAMO: 4},
        wall=(DYNAMO,),
    ),
    "admit": Spec(
        "admit 306 blocks, 117 new, pool of 100,000",
        "admit",
        (VLLM, *TREES),
        {**FULL, "what": "admit"},
        goals=ADMIT,
    ),
    "admit-1m": Spec(
        "the same, pool of 1,000,000",
        "admit",
        (VLLM, RUST),
        {**LARGE, "what": "admit"},
        goals=ADMIT,
    ),
    "admit-ahead": Spec(
        "admission like that, room made ahead at the step (see the row of that)",
        "admit",
        (VLLM, RUST),
        {**FULL, "what": "ahead"},
        stat="told",
        goals=AHEAD,
    ),
    "admit-ahead-1m": Spec(
        "the same, pool of 1,000,000",
        "admit",
        (VLLM, RUST),
        {**LARGE, "what": "ahead"},
        stat="told",
        goals=AHEAD,
    ),
    "admit-step": Spec(
        "making that room at the step, 117 blocks, pool of 100,000",
        "admit",
        (),
        {**FULL, "what": "step"},
        stat="told",
    ),
    "admit-tokens": Spec(
        "the same from tokens, pool of 100,000", "admit", (VLLM, RUST), {**FULL, "what": "tokens"}
    ),
    "finish": Spec("finish 306 blocks", "admit", (VLLM, *TREES), {**FULL, "what": "finish"}),
    "events": Spec(
        "events of an admission of 306 blocks, 117 new, with their message",
        "events",
        (VLLM,),
        {**FULL, "encode": True},
        stat="told",
        goals={VLLM: 30},
    ),
    "events-beside": Spec(
        "what of that the thread does that admits",
        "events",
        (VLLM,),
        {**FULL, "encode": False},
        stat="told",
        goals={VLLM: 70},
    ),
    "decode-256": Spec("decode step of 256", "decode", (VLLM,), {"rows": 256}, goals={VLLM: 100}),
    "decode-1024": Spec("decode step of 1,024", "decode", (VLLM,), {"rows": 1024}),
    "schedule": Spec("schedule and output of 256 decodes", "schedule", (VLLM,), goals={VLLM: 50}),
    "evict": Spec("evict 4 blocks among 25,000 leaves", "evict", (VLLM, *TREES), goals={RUST: 100}),
    "offload": Spec("offload bookkeeping, per key", "offload", (VLLM, ARC), warm=4),
    "offload-worst": Spec(
        "its worst call of 256 keys",
        "offload",
        (VLLM, ARC),
        stat="worst",
        goals={VLLM: 500},
        warm=4,
    ),
    "connector-decode": Spec(
        "decode step of 256 in vLLM, all calls of the connector",
        "connector-decode",
        (OFFLOADING, SIMPLE),
        stat="told",
        goals={OFFLOADING: 20},
        ours=INSIDE,
    ),
    "connector-lookup": Spec(
        "its lookup of 128 blocks of the host",
        "connector-hits",
        (OFFLOADING, SIMPLE),
        {"what": "lookup"},
        stat="told",
        ours=INSIDE,
    ),
    "connector-worst": Spec(
        "its worst call in 64 loads of 128 blocks at once",
        "connector-hits",
        (OFFLOADING, SIMPLE),
        {"what": "worst"},
        stat="told",
        ours=INSIDE,
    ),
    "match-beside": Spec(
        "match of 64 beside a busy thread, of the control's share",
        "match",
        (VLLM, *TREES, DYNAMO),
        FULL,
        stat="beside",
        least=0.95,
    ),
    "turn-beside": Spec(
        "a request of 32 new blocks beside a busy thread, of the control's share",
        "turnover",
        (VLLM, *TREES),
        FULL,
        stat="beside",
        least=0.95,
        warm=4,
    ),
    "match-two": Spec(
        "match of 64 by two threads on one cache, calls of one",
        "match",
        (VLLM, *TREES, DYNAMO),
        FULL,
        stat="two",
    ),
    "turn-two": Spec(
        "a request of 32 new blocks by two threads on one cache, calls of one",
        "turnover",
        (VLLM, *TREES),
        FULL,
        stat="two",
        warm=4,
    ),
    "memory": Spec(
        "memory of a full pool of 1,000,000, per block",
        "memory",
        (VLLM, *TREES, DYNAMO),
        LARGE,
        stat="memory",
    ),
}

#: What a side does in a row, and the others do not, or the reverse.
NOTES: dict[tuple[str, str], str] = {
    ("keys", OURS): "SHA-256 of a documented encoding, chained, 32 bytes",
    ("keys", VLLM): "SHA-256 of a pickle, chained, 32 bytes; without building the request",
    ("keys", XXHASH): "128 bits, seeded at random per process, not collision resistant",
    ("keys", DYNAMO): "64 bits, each block on its own: not chained, not collision resistant",
    ("match", OURS): "keys are ready; nothing is pinned or touched",
    ("match", VLLM): "keys are ready; makes the list of blocks; nothing is pinned",
    ("match", RUST): "compares tokens, needs no keys; splits nodes, touches recency",
    ("match", PYTHON): "as the Rust tree",
    ("match", LEGACY): "as the Rust tree",
    ("match", DYNAMO): "hashes are ready; scores workers; by elapsed time, on a thread of its own",
    ("admit", OURS): "keys are ready; begin and seal",
    ("admit", VLLM): "keys are ready; get_computed_blocks and allocate_slots",
    ("admit", RUST): "needs no keys; match, lock, evict, allocate, insert, lock, unlock",
    ("admit", PYTHON): "as the Rust tree",
    ("admit", LEGACY): "as the Rust tree",
    ("admit-ahead", OURS): "begin and seal; nothing is evicted: make_spare has done it before",
    ("admit-ahead", VLLM): "makes no room ahead: as above, one by one",
    ("admit-ahead", RUST): "likewise",
    ("admit-step", OURS): "make_spare, as grow and decode_step do it while the GPU computes",
    ("admit-tokens", OURS): "with the 306 keys",
    ("admit-tokens", VLLM): "with the request and its 306 keys",
    ("admit-tokens", RUST): "has no keys: the same work again",
    ("finish", VLLM): "free of the request",
    ("finish", RUST): "unlocks one path of nodes, frees the page that is not full",
    ("finish", PYTHON): "as the Rust tree",
    ("finish", LEGACY): "as the Rust tree",
    ("events", OURS): "117 stored and 117 removed; the message in Rust, as the publisher makes it",
    ("events", VLLM): "likewise; take_events and its msgspec encoder",
    ("events-beside", OURS): "a word in a ring for each; another thread takes it",
    ("events-beside", VLLM): "structs with their tokens, and take_events",
    ("decode-256", OURS): "decode_step over a batch: append, seal, grow, the changed cells",
    ("decode-256", VLLM): "append and allocate_slots each; its tables are written in the worker",
    ("decode-1024", OURS): "likewise",
    ("decode-1024", VLLM): "likewise",
    ("schedule", OURS): "schedule and on_output, which appends and seals",
    ("schedule", VLLM): "schedule and update_from_output, the plain Scheduler, no statistics",
    ("evict", OURS): "a whole begin of four new blocks",
    ("evict", VLLM): "BlockPool.get_new_blocks alone; a plain queue, leaves are not sought",
    ("evict", RUST): "evict alone, nothing is allocated",
    ("evict", PYTHON): "as the Rust tree",
    ("evict", LEGACY): "as the Rust tree",
    ("offload", OURS): "demote, promote and their landings, in a pool with two tiers",
    ("offload", VLLM): "the seven calls of a request, its LRU; knows the host's blocks alone",
    ("offload", ARC): "likewise, its ARC",
    ("offload-worst", OURS): "median over rounds of a round's longest call, CPU time",
    ("connector-decode", INSIDE): "block tables are followed, 16 of them with a new block",
    ("connector-decode", OFFLOADING): "stores blocks of prompts alone, as it does by default",
    ("connector-decode", SIMPLE): "eager, as it is by default: stores full blocks of answers, too",
    ("connector-lookup", INSIDE): "median of a round; keys are ready",
    ("connector-lookup", OFFLOADING): "median of a round; one key after the other",
    ("connector-lookup", SIMPLE): "median of a round",
    ("connector-worst", INSIDE): "median over rounds; the copies of all are reported in one call",
    ("connector-worst", OFFLOADING): "likewise",
    ("connector-worst", SIMPLE): "likewise; the loads of a step are one event",
    ("match-beside", RUST): "its binding lets the interpreter go",
    ("turn-beside", RUST): "its binding lets the interpreter go",
    ("match-two", OURS): "short verbs keep the interpreter",
    ("match-two", VLLM): "match changes nothing",
    ("turn-two", OURS): "the peers' pools and trees raise",
    ("memory", OURS): "trie, keys and recency of a device tier",
    ("memory", VLLM): "block objects, 36-byte keys and the map",
    ("memory", RUST): "chains of 100 blocks: a node each; 128 bytes are the indices of 16 tokens",
    ("memory", PYTHON): "as the Rust tree",
    ("memory", LEGACY): "as the Rust tree",
    ("memory", DYNAMO): "a tree of one worker's hashes; no pool",
}
#: Rows that peers cannot play.
LACKING = """\
- SGLang has no keys in its trees, and no bookkeeping per sequence in a decode step: slots come
  from a tensor of free ones on the device. Its scheduler does not run without one.
- SGLang's offload (HiCache) moves nodes on threads of its own and needs its memory pools: not
  driven here.
- Dynamo's tree knows which worker has what; it allocates, evicts and schedules nothing.
- Two threads that allocate from one cache: vLLM's pool and SGLang's trees raise, so that they have
  no line; what they raise is printed as it happens.
- Blockyard alone can park a whole sequence. No side publishes events but in the rows of these."""


def shown(value: float, stat: str) -> str:
    """Returns a figure as text."""
    if stat in {"beside", "two"}:
        return f"{value:.2f}"
    if stat == "memory":
        return f"{value:.0f} B"
    for unit, size in (("ns", 1.0), ("µs", 1e3), ("ms", 1e6)):
        if value < 1000 * size or unit == "ms":
            return f"{value / size:.{0 if value >= 100 * size else 1}f} {unit}"
    raise AssertionError(value)


def verdict(ratio: float | None, goal: float | None) -> str:
    """Returns whether a ratio meets its goal."""
    if goal is None or ratio is None:
        return ""
    return "met" if ratio >= goal else "missed"


def quantile(values: Iterable[float], share: float) -> float:
    """Returns a quantile."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


class Line(NamedTuple):
    """One side in one row."""

    row: str
    side: str
    value: float
    p99: float | None
    worst: float | None
    ratio: float | None
    goal: str
    verdict: str


def judged(name: str, spec: Spec, seen: dict[str, dict[str, Any]]) -> list[Line]:
    """Returns a row's lines, from each side's answer: `value`, `wall`, `each`, or its failure."""
    ours = seen[spec.ours]
    lines = []
    for side, said in seen.items():
        if "value" not in said:
            continue
        clock = "wall" if side in spec.wall else "value"
        ratio = None if side == spec.ours or "value" not in ours else said[clock] / ours[clock]
        if spec.stat == "two" and ratio is not None:
            ratio = None
        goal, met = "", ""
        if side == spec.ours and spec.least is not None:
            goal, met = f"≥ {spec.least:g}", verdict(said["value"], spec.least)
        elif side in spec.goals:
            goal, met = f"≥ {spec.goals[side]:g}", verdict(ratio, spec.goals[side])
        each = None if name == "offload" else said.get("each")
        lines.append(
            Line(
                name,
                side,
                said[clock],
                quantile(each, 0.99) if each else None,
                max(each) if each else None,
                ratio,
                goal,
                met,
            )
        )
    return lines


def markdown(lines: list[Line], specs: dict[str, Spec]) -> str:
    """Returns the table as Markdown."""
    said = [
        "| row | side | median | p99 | worst | times ours | goal | | what it is |",
        "|---|---|--:|--:|--:|--:|--:|---|---|",
    ]
    last = ""
    for line in lines:
        spec = specs[line.row]
        cells = [
            "" if line.row == last else spec.what,
            line.side,
            shown(line.value, spec.stat),
            "" if line.p99 is None else shown(line.p99, "median"),
            "" if line.worst is None else shown(line.worst, "median"),
            "" if line.ratio is None else f"{line.ratio:.{0 if line.ratio >= 10 else 1}f}",
            line.goal,
            line.verdict,
            NOTES.get((line.row, line.side), ""),
        ]
        said.append(f"| {' | '.join(cells)} |")
        last = line.row
    return "\n".join(said)


def middle(values: list[float]) -> float:
    """Returns the median."""
    return float(median(values))
