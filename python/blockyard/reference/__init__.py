"""A small engine with real KV, for tests and `blockyard proof`."""
