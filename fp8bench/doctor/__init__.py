"""Checks whether a machine is fit for measurements, and what would spoil a number on it.

Gathering facts and judging them are separate. Facts come from `machine`, in this process, and from `probe`, in separate
processes, because an import of torch, torchao or Transformer Engine can hang or crash its process. Judging is pure:
three tables of checks, and facts in, findings out (`check`). `examine` runs both.

Nothing is changed and nothing is guessed: what could not be determined is `unknown`, and an unknown never fails.
"""
