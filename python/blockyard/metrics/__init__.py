"""Prometheus metrics and the health of a process: `serve` serves both on a port."""

from blockyard.shared.extras import require

require("blockyard.metrics", "metrics", "prometheus_client")
