"""A scheduler and its engine behind coroutines."""
