"""Precision modes: each takes a plain float32 model and returns one that computes the same in another precision."""
