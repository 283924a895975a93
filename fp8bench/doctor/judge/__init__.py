"""Judging: facts in, findings out. Nothing here examines the machine.

There is one file per subject, and each has `findings(facts)`.
"""
