"""What others claim, beside what was measured here."""
