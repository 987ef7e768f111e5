"""The bookkeeping: which block is in which tier, and who may use it. It touches no KV bytes."""
