"""What a process tells Prometheus, and whether it is well: `serve` puts both on a port."""

from blockyard.shared.extras import require

require("blockyard.metrics", "metrics", "prometheus_client")
