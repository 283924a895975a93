"""What this host knows of how a process ended: a limit that it reached, or a variable that makes torch crash."""

import os
import resource
import signal

VARIABLE = "TORCH_DISTRIBUTED_DEBUG"


def remedy_of(exit_code: int | None) -> str | None:
    """Return what to do about a child that ended with this code (negative for a signal); None if nothing is known."""
    if exit_code in (-signal.SIGKILL, -signal.SIGXCPU):
        limit_s, _ = resource.getrlimit(resource.RLIMIT_CPU)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        # What the kernel compares with the limit is counted more coarsely.
        if limit_s != resource.RLIM_INFINITY and used.ru_utime + used.ru_stime > 0.9 * limit_s:
            return f"Raise the limit on CPU time (`ulimit -t`), by which a process is ended after {limit_s} s of it"
    if exit_code == -signal.SIGSEGV and os.environ.get(VARIABLE, "").upper() == "DETAIL":
        return f"Unset {VARIABLE}: with DETAIL some versions of torch crash in DDP"
    return None
