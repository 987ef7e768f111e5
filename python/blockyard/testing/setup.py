"""The fields of a scenario: sizes and policies, and what happens at a tick."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from blockyard.scheduling.headroom import (
    Adaptive,
    FullLength,
    HeadroomPolicy,
    NoHeadroom,
    Watermark,
)
from blockyard.scheduling.request import TERMINAL, RequestState
from blockyard.scheduling.victims import LeastComputed, Newest, VictimPolicy
from blockyard.shared.hints import Retention
from blockyard.yard.config import Eviction, HostCopies
from blockyard.yard.parking import PreemptMode

__all__ = [
    "FAULTS",
    "HANDOVER_WORDS",
    "HEADROOMS",
    "ONCE_READ",
    "OWN_VERBS",
    "VERBS",
    "VICTIMS",
    "WORDS",
    "Event",
    "Setup",
]

_Write: TypeAlias = Literal["on-evict", "through", "second-touch"]

HEADROOMS: Final[dict[str, Callable[[], HeadroomPolicy]]] = {
    "none": NoHeadroom,
    "full-length": FullLength,
    "watermark": lambda: Watermark(2),
    "adaptive": lambda: Adaptive(2.0, 0.1, short=3),
}
VICTIMS: Final[dict[str, Callable[[], VictimPolicy]]] = {
    "newest": Newest,
    "least-computed": LeastComputed,
}

VERBS: Final = {
    "add": (6, 8, 9),
    "abort": (2,),
    "pause_decoding": (1,),
    "resume_decoding": (1,),
    "hint": (5,),
    "ack": (2,),
    "copy": (4,),
    "outcome": (3,),
    "release": (1,),
    "stall": (1,),
    "rank": (2,),
    "engine": (1,),
    "weights": (0,),
    "reconcile": (1,),
    "fail": (2,),
    "promise": (4,),
    "withdraw": (1,),
    "peer": (1,),
    "resize": (2,),
    "restart": (2,),
    "kill": (3,),
    "stop": (2,),
    "slow": (2,),
    "scheduler": (2,),
    "forget": (2,),
    "handover": (2,),
    "hold": (2,),
    "evacuate": (2,),
}
"""How many fields each verb may have."""

OWN_VERBS: Final = frozenset(
    {"add", "abort", "hint", "copy", "outcome", "release", "stall", "rank", "engine", "resize"}
    | {"forget"}
)
"""Those that an engine which gives out its block ids itself knows."""

FAULTS: Final = frozenset(
    {"copy", "outcome", "rank", "engine", "weights", "fail", "resize", "kill", "scheduler"}
)
"""Those that may cost a sequence the last copy of its KV, or the room that it began with."""


class Event(NamedTuple):
    """One thing that happens at a tick.

    | verb | what |
    |---|---|
    | add | name, family of the prompt, tokens shared with the family, tokens of its own, tokens \
to sample at most, priority; optionally salt and LoRA, "" for none, and number of samples, whose \
names are "('name', 0)" and so on. It takes the ticket of its name |
    | abort | name, and the state in which the request is aborted, "" for now |
    | pause_decoding | name: the request decodes nothing from now on |
    | resume_decoding | name: it goes on |
    | hint | name, retention, seconds to the next use, priority and ticks to live of what it \
leaves, "" for what nobody knows: it may be a lie |
    | ack | "late", "twice", "lost", "unheard" or "foreign", ticks: the fate of the next stop |
    | copy | rank, "up", "down", "across", "to disk" or "from disk", word, number: the `Action` \
for the next such copy |
    | outcome | rank, "sent", "late", "twice", "lost" or "foreign", ticks: the fate of the rank's \
next outcome |
    | release | rank: copies that hang go on, and a dead copier lives again |
    | stall | ticks in which the engine computes nothing |
    | rank | rank, "kept", "lost" or "disk kept": the rank is reset, and its memory is kept, or \
lost, or lost but for a disk that outlives the process |
    | engine | "recompute" or "abort": the engine is reset |
    | weights | the weights are updated |
    | reconcile | ticks by which the engine's list of seats is late |
    | fail | ticks, "recompute" or "abort": the engine dies, and is reset that many ticks later |
    | promise | name of a request, blocks, ticks, peer: a ticket for it, for that many ticks |
    | withdraw | name of a request: its ticket is released |
    | peer | peer: it dies, and its tickets expire |
    | resize | "device", "host" or "disk", slots |
    | restart | "closed" or "killed", number: the process ends, and a new one begins on what the \
disk has; the number decides about copies that are under way |
    | kill | rank, ticks, "wait" or "fail": the rank's process is gone, and comes back that many \
ticks later; "fail" says of the engine that it is dead, "wait" says nothing |
    | stop | rank, ticks: the rank's process does nothing for so long |
    | slow | rank, ticks: what is sent to the rank takes so long from now on |
    | scheduler | ticks, number: the scheduler's process is gone, when so many ranks had its last \
plans, and comes back that many ticks later; the ranks live on |
    | forget | name of a request, "names" or "values": what the store is known to have of its \
prompt is forgotten, or all that anybody has |
    | handover | a word of `HANDOVER_WORDS`, number: what befalls the next message, offer, block \
or reader, a clock, or one of both engines; the number is of ticks, or decides what |
    | hold | name of a request, ticks: what the device has of its prompt is held for so long |
    | evacuate | name of a request, "" for all; ticks: it moves to the other engine that shares \
the store, or comes back to this one, so many ticks later at the latest |
    """

    tick: int
    verb: str
    what: tuple[int | str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Sizes and policies."""

    blocks: Literal["yard", "engine"] = "yard"
    """What gives out the device's blocks: the yard, or the engine itself, beside a `Connector`."""
    device: int = 12
    host: int = 0
    disk: int = 0
    remote: int = 0
    """Names of blocks in a store that engines share."""
    second: Literal["", "alike", "weights", "ranks", "shape", "decode"] = ""
    """Whether a second engine shares the store, and in what it differs. It plays the same events,
    some ticks later. With "decode" the first computes prompts, which the second takes over."""
    lease: int = 6
    """Ticks that a reader of an offer has from one renewal to the next."""
    unread_ticks: int = 10
    """Ticks that an offer waits for its first reader."""
    patience: int = 12
    """Ticks that a request waits for its offer."""
    weights: int = 1
    """Which weights the engine has: values of others are not for it."""
    store_values: int = 1000
    """Values that the store holds: beyond those it refuses, or drops one. 0 for no store."""
    store_late: int = 0
    """Ticks that an answer of the store takes at most."""
    store_lies: int = 0
    """Of a hundred values that the store returns, so many are wrong."""
    store_loses: int = 0
    """Of a hundred values that it takes, so many are lost."""
    store_fails: int = 0
    """Of a hundred calls, so many are refused."""
    block_size: int = 4
    ranks: int = 1
    shape: Literal["page-first", "layer-first", "replicated"] = "page-first"
    eviction: Eviction = "recency"
    host_copies: HostCopies | None = None
    write: _Write | Mapping[str, _Write] = "on-evict"
    ahead: int | Mapping[str, int] | None = None
    spare: int | None = None
    deadline: int | Mapping[str, int] | None = None
    block_costs: tuple[int, int, int] | tuple[int, int, int, int] | None = None
    """To load a block from the host, to compute it, what each block before it adds, and to load it
    from the disk."""
    disk_polls: int = 0
    """Polls that a copy from or to the disk takes at least, as the disk is slow."""
    disk_copies: int = 0
    """Copies from and to the disk that a rank makes at once; the others wait. 0 for all."""
    disk_lasts: bool = False
    """Whether the disk outlives the process, so that a restart finds its blocks again."""
    processes: bool = False
    """Whether the scheduler and each rank are processes that may die one by one."""
    yard: int = 1
    """The number of the first yard; those that follow it have the next."""
    asks: int = 0
    """Ticks between two questions of `processes` for outcomes that may be lost; 0 for none before
    all requests have ended."""
    lossy: int = 0
    """Of a hundred outcomes that `processes` send, so many are lost, until all have ended."""
    max_num_seqs: int = 4
    max_num_batched_tokens: int = 16
    headroom: str = "adaptive"
    victims: str = "newest"
    preempt_mode: PreemptMode = "park"
    """What a preempted request keeps; without a tier below it is recomputed in any case."""
    recompute: bool = True
    """Whether the engine can recompute; if not, preempted requests must be parked."""
    max_stalled_steps: int = 32
    max_held_steps: int = 16
    priority_preemption: bool = True
    preempt_cooldown: int = 4
    max_overtakes: int = 4
    stops: Literal["in-order", "acked"] = "acked"
    steps_in_flight: int = 1
    """Steps in flight beside the one that is computed; their tokens are not known yet."""
    drafts: int = 0
    """Draft tokens in each decoding row."""
    channel: Literal["before", "behind", "inside"] = "behind"
    """Whether acks come before the output of the same poll, behind it, or inside it."""
    eager: bool = False
    """Whether an idle engine acknowledges a stop before it computes the step with that stop."""
    ends: bool = True
    """Whether the engine ends some sequences by itself."""
    reconcile_every: int = 8
    """Ticks between two reconciles; 0 for none before the faults end."""
    replicas: int = 1
    """Yards that take the same calls, and are compared after every step."""
    cranes: Literal["here", "elsewhere"] = "here"
    """With "elsewhere" there are no bytes to check: each copy is good, some ticks later."""
    tick_ms: int = 10
    """Milliseconds of a tick on the scheduler's clock, which decides nothing."""
    unread: bool = False
    """Whether what is held when the faults end stays so until all others have ended."""
    watched: bool = False
    """Whether the last replica alone counts times, by a clock that jumps, is asked for all of its
    numbers after every step, and tells a listener, at times too late, what its blocks do."""


ONCE_READ: Final = 100
"""What is added to the number of a "handover" that happens once blocks are read."""

HANDOVER_WORDS: Final = frozenset(
    {f"{what} {fate}" for what in ("message", "done") for fate in ("late", "lost", "twice")}
    | {f"offer {fate}" for fate in ("late", "lost", "twice", "foreign", "malformed", "another")}
    | {"offer shared", "slow", "spoilt", "cut", "rest", "busy", "reader", "clock"}
    | {f"prefill {what}" for what in ("kill", "stop", "clear", "weights", "reset", "forget")}
    | {"prefill abort", "prefill room"}
    | {f"decode {what}" for what in ("kill", "stop", "clear", "weights", "reset", "fail")}
)
"""What may happen to hand-overs."""

WORDS: Final[dict[str, tuple[int, frozenset[str]]]] = {
    "abort": (1, frozenset({"", *(state for state in RequestState if state not in TERMINAL)})),
    "hint": (1, frozenset(get_args(Retention))),
    "ack": (0, frozenset({"late", "twice", "lost", "unheard", "foreign"})),
    "copy": (1, frozenset({"up", "down", "across", "to disk", "from disk"})),
    "outcome": (1, frozenset({"sent", "late", "twice", "lost", "foreign"})),
    "restart": (0, frozenset({"closed", "killed"})),
    "forget": (1, frozenset({"names", "values"})),
    "handover": (0, HANDOVER_WORDS),
    "kill": (2, frozenset({"wait", "fail"})),
}
"""The words that a field of an event may be, and the index of that field."""
