"""What all tests need before they are imported."""

# `blockyard.engines.vllm` needs vLLM, which only its users have.
import vllm_stub  # noqa: F401
