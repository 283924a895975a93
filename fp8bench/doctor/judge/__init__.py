"""Judging: facts in, findings out. Nothing here looks at the machine.

One file a subject; each has `findings(facts)`.
"""
