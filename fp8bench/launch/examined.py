"""Examines a model before its first worker starts, if its workload's name leaves open what it is made of (a model of
timm, or sizes that the user gave): what cannot work fails in seconds, and not in a worker of each mode.

The model is built in a separate process, because the launcher imports no torch.
"""

import subprocess
import sys
from collections.abc import Sequence

from pydantic import ValidationError

from fp8bench import registry
from fp8bench.config.sizes import sizes_of
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import RunFailed
from fp8bench.schema.model import Answer, Asked

PROGRAM = (sys.executable, "-m", "fp8bench.numerics.model_facts")
LIMIT_S = 300
"""timm's slowest model to examine takes 80 s on two cores; most take less than 5 s."""


def examined(configs: Sequence[RunConfig], program: Sequence[str] = PROGRAM, always: bool = False) -> Answer | None:
    """Return what was found out about the model; None if the workload's name says it all, and nothing is examined,
    unless `always`.

    configs: of one workload. Raises ModeUnavailable if no mode can be proved with the model, UsageError if no model has
    the sizes in the name, and RunFailed on a failure.
    """
    name = configs[0].workload
    if not always and registry.find_workload(name).member is None and not sizes_of(name):
        return None
    asked = Asked(configs=tuple(configs)).model_dump_json()
    why, remedy = "its answer cannot be read", f"See what `fp8bench --debug workloads {name}` says"
    try:
        done = subprocess.run(program, input=asked, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        if done.returncode != 0:
            why = [f"exit code {done.returncode}", *filter(str.strip, done.stderr.splitlines())][-1]
        answer = Answer.model_validate_json(done.stdout if done.returncode == 0 else "")
    except (subprocess.TimeoutExpired, ValidationError) as error:
        if isinstance(error, subprocess.TimeoutExpired):
            why = f"no answer within {LIMIT_S} s"
        raise RunFailed(f"{name} could not be looked at: {why.rstrip('.')}", remedy) from error
    if answer.refusal is not None:
        raise answer.refusal.error()
    return answer


def require_modes(answer: Answer | None, named: bool) -> None:
    """Raise ModeUnavailable if a mode is refused and must run: all must if `named` by the user, otherwise one."""
    modes = answer.modes if answer is not None else ()
    refused = [one for one in modes if one is not None]
    if refused and (named or len(refused) == len(modes)):
        raise refused[0].error()
