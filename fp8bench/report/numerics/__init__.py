"""Errors of precision modes, alone and side by side."""
