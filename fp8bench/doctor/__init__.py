"""Checks whether a machine is fit for measurements, and what would spoil a number on it.

Facts come from `machine`, in this process, and from probes, each in its own process, because an import of torch,
torchao or Transformer Engine can hang or crash it. Judging is pure: facts in, a verdict out. Nothing is changed and
nothing is guessed: what could not be determined is `unknown`, and an unknown never fails.
"""
