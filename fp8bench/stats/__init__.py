"""Numbers computed from samples: pure functions, without torch."""
