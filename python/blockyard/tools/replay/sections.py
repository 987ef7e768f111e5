"""How the help of `blockyard replay` groups its options."""

from typing import Final

from blockyard.tools.help import Section

__all__ = ["SECTIONS"]

SECTIONS: Final = (
    Section(
        "Requests",
        (
            "--requests",
            "--trace-block",
            "--workload",
            "--rate",
            "--seed",
            "--save-trace",
        ),
        "blockyard replay trace.jsonl --requests 2000",
    ),
    Section(
        "Load and engines",
        ("--speed", "--replicas", "--router"),
        "blockyard replay trace.jsonl --speed 2 --replicas 4 --router prefix",
    ),
    Section(
        "Sizes",
        ("--device", "--host", "--disk", "--disk-gbps", "--block-size"),
        "blockyard replay --device 4GiB --host 16GiB --host 64GiB",
    ),
    Section(
        "A shared store",
        ("--remote", "--store-latency", "--store-bandwidth", "--store-loss"),
        "blockyard replay --host 4GiB --remote 1TiB --store-loss 0.01",
    ),
    Section(
        "Policies to compare; repeat them, and each combination is a run",
        (
            "--policy",
            "--write-policy",
            "--host-copies",
            "--headroom",
            "--preempt-mode",
            "--hints",
            "--owner",
        ),
        "blockyard replay --policy recency --policy learned",
    ),
    Section(
        "The modelled engine",
        (
            "--model",
            "--preset",
            "--set",
            "--ranks",
            "--role",
            "--max-num-batched-tokens",
            "--max-num-seqs",
            "--prefetch",
            "--loads",
            "--victims",
        ),
        "blockyard replay --preset llama-3-70b/h100x4 --set hbm_share=0.85",
    ),
    Section(
        "Real bytes",
        ("--verify",),
        "blockyard replay --requests 100 --verify memory --ranks 2",
    ),
    Section(
        "Output",
        ("--json", "--report", "--jobs", "--quiet"),
        "blockyard replay --json result.json --report report.html",
    ),
)
