"""One rank's memory and the copies of its bytes. It knows no block, lease or policy."""
