"""Is this machine fit to be measured, and what would spoil a number on it?

Looking and judging are apart. Looking gathers facts: `machine` in this process, `probe` in processes of its own, since
an import of torch, torchao or Transformer Engine can hang, or take the process down with it. Judging (`judge`) is pure:
facts in, findings out. `examine` runs both.

Nothing is changed, nothing is guessed: what could not be learned is `unknown`, and an unknown never fails.
"""
