"""What a process tells Prometheus, and whether it is well: `serve` puts both on a port."""
