"""Hand-over of KV from prefill instances to decode instances: both sides, and what is offered."""
