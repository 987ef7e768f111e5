"""No request loses its work: the same conversations under pressure, token by token."""
