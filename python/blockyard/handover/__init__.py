"""Hand-over of KV from prefill engines to decode engines: both sides, and what is offered."""
