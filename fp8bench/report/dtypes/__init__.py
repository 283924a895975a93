"""What number formats hold."""
