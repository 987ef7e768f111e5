"""A proof that no request loses its work: the same conversations under pressure, compared."""
