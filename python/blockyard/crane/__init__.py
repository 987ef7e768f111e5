"""One rank's memory, and what moves its bytes. It knows no block, lease or policy."""
