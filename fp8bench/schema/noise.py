"""How far two step times must differ before one of them is called better."""

NOISE = 0.01
"""Our choice, as a share. A verdict needs the complete interval beyond it. An explanation has no interval, and calls a
step faster from here on too: otherwise it would deny what a verdict says.
"""
