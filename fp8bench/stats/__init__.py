"""Numbers from samples: pure functions, no torch."""
