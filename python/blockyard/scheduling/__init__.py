"""Which request runs, waits, is preempted or ends."""
