"""What others claim, compared with what was measured here."""
