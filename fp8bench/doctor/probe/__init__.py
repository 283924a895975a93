"""Looks that import torch, torchao or Transformer Engine. Each runs in a process of its own, and may die in it:

    python -m fp8bench.doctor.probe NAME

prints one JSON object. Of an exception the traceback stands on stderr, where the doctor reads its last line.
"""
