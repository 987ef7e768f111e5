"""One rank's memory and the copies of its bytes. It has no blocks, leases or policies."""
