"""Figures that documents name, one file a subject; `paper` is what they have in common."""
