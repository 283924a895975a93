"""Precision modes: each takes a plain float32 model and gives back one that computes the same in another precision."""
