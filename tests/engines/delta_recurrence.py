"""The recurrence of gated delta nets, in place of vLLM's chunked kernel for a CPU.

That kernel computes a prompt in another order than the one that decodes, and rounds to 8 bits in
between: tokens that are computed again choose other ones, with this connector and without.
vLLM's workers import this as the module of a `worker_extension_cls`.
"""

from itertools import pairwise
from typing import Any

import torch
from vllm import _custom_ops as ops

__all__ = ["Exact"]


class Exact:
    """Adds nothing to vLLM's worker: its module has replaced the kernel."""


def _unit(vectors: torch.Tensor, eps: float) -> torch.Tensor:
    wide = vectors[0].float()
    return wide * torch.rsqrt(wide.pow(2).sum(-1, keepdim=True) + eps)


def _recur(*, initial_state: torch.Tensor, eps: float = 1e-5, **of: Any) -> Any:
    """As `chunk_gated_delta_rule_cpu`, a token at a time."""
    query = _unit(of["query"], eps) * of["query"].shape[-1] ** -0.5
    key, value = _unit(of["key"], eps), of["value"][0].float()
    keeps, beta = of["g"][0].float().exp(), of["beta"][0].float()
    out = torch.empty_like(of["value"])
    slots = of["initial_state_indices"].tolist()
    for slot, (first, end) in zip(slots, pairwise(of["cu_seqlens"].tolist()), strict=True):
        state = initial_state[slot].float()
        for at in range(first, end):
            state = state * keeps[at][:, None, None]
            missing = value[at] - torch.einsum("hkv,hk->hv", state, key[at])
            state = state + torch.einsum("hk,hv->hkv", key[at], missing * beta[at][:, None])
            out[0, at] = torch.einsum("hkv,hk->hv", state, query[at]).to(out.dtype)
        initial_state[slot] = state
    return out, initial_state


ops.chunk_gated_delta_rule_cpu = _recur
