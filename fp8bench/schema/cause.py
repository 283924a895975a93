"""Why a run stopped, in one word that a program can act on; a record's `reason` says it in a sentence."""

from typing import Literal, get_args

Cause = Literal[
    "unavailable",
    "capture",
    "parity",
    "execution",
    "nan",
    "no-fp8",
    "oom",
    "host-death",
    "crash",
    "timeout",
]
CAUSES: tuple[Cause, ...] = get_args(Cause)
"""unavailable: this machine or the mode cannot do what was asked for
capture: the step could not be captured in a CUDA graph
parity: the model, as converted, does not compute what the plain one does
execution: the steps, as executed (compiled, replayed), do not compute what the same steps do plainly
nan: a loss was not finite
no-fp8: no matrix product ran in fp8 where the mode means them to
oom: the memory of the GPU, or of the host, did not suffice
host-death: the process of a rank was ended from outside, or ended without a word
crash: a rank raised an error that none of the others is the reason of
timeout: a phase took longer than its deadline
"""
