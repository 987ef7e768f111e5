"""The proof that no request loses its work: the same talks under pressure, token by token."""
