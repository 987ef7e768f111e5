"""`blockyard.connectors.vllm`."""

from blockyard.connectors.vllm import *
