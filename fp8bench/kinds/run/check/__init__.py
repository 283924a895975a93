"""`check`: whether anything became slower than allowed, compared with a reference."""
