"""Which options of the engines KV depends on; nothing of an engine is imported for it."""
