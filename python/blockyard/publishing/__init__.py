"""What routers are told of a cache: events over ZeroMQ, as vLLM publishes them."""
