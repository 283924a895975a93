"""Checks whether a machine is fit for measurements, and what would spoil a number on it. Nothing is changed."""
