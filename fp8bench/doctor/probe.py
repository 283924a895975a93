"""Runs probes: what can only be determined by importing torch, torchao or Transformer Engine. Each runs in its own
process, which may hang or crash, with a time limit. How a probe failed is an answer too.

    python -m fp8bench.doctor.probe NAME [PARENT]

prints one JSON object, and ends when its parent (a process id) does. After an exception, its traceback is on stderr,
and the doctor reads the line with the error.
"""

import asyncio
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import ValidationError

from fp8bench.doctor import software
from fp8bench.doctor.check import Answer, Failure
from fp8bench.lifeline import leave_with

COMMAND = (sys.executable, "-m", "fp8bench.doctor.probe")
LONGEST_QUOTE = 160
_ERROR_LINE = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Failed|Exit|Interrupt|Unavailable|Invalid)\b.*")


class Probe(NamedTuple):
    """needs: `te` is a GPU and Transformer Engine. environ: beside that of a run; `{folder}` is an empty folder."""

    name: str
    run: Callable[[], Answer]
    needs: Literal["", "gpu", "te"] = ""
    environ: Mapping[str, str] = {}


IN_EMPTY_CACHES = {
    "TORCHINDUCTOR_CACHE_DIR": "{folder}/inductor",
    "TRITON_CACHE_DIR": "{folder}/triton",
    # One small function: a pool of compilers takes longer to start than to use.
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}

PROBES = (
    Probe("attention", software.attention, "te", {"NVTE_DEBUG": "1", "NVTE_DEBUG_LEVEL": "2"}),
    Probe("libraries", software.libraries, "te"),
    Probe("transformer-engine", software.transformer_engine, "te"),
    Probe("precision", software.precision, "gpu"),
    Probe("compile", software.compiled, "gpu", IN_EMPTY_CACHES),
    Probe("torch", software.torch_and_cuda),
    Probe("timm", partial(software.imported, "timm", "models.vision_transformer")),
    Probe("torchao", partial(software.imported, "torchao", "float8")),
)
"""The slowest first."""


def main() -> None:
    """Run a probe. What libraries print on stdout is sent to stderr, so that stdout has only the answer."""
    name, *parent = sys.argv[1:]
    if parent:
        leave_with(int(parent[0]))
    result_to = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    (answer,) = (probe.run() for probe in PROBES if probe.name == name)
    os.write(result_to, answer.model_dump_json().encode())
    # The answer is written. Tearing down CUDA, compilers and their threads takes seconds and can only fail.
    os._exit(0)


def wanted(has_gpu: bool, has_te: bool) -> tuple[Probe, ...]:
    there = {"": True, "gpu": has_gpu, "te": has_gpu and has_te}
    return tuple(probe for probe in PROBES if there[probe.needs])


def run_probes(
    probes: Sequence[Probe],
    environ: Mapping[str, str],
    folder: Path,
    at_once: int,
    limit_s: float,
    command: tuple[str, ...] = COMMAND,
) -> dict[str, Answer | Failure]:
    """Return answers by name. environ: that of a run. folder: an empty one. limit_s: for all probes together. Every
    process that is left at the end, for whatever reason, is killed, with everything that it started.
    """
    room = asyncio.Semaphore(at_once)

    async def asked(probe: Probe, output: Path) -> Answer | Failure:
        own = {name: text.format(folder=folder) for name, text in probe.environ.items()}
        async with room:
            # Files, because a pipe would stay open while anything that the probe started is alive; and a separate
            # process group, so that a compiler that it started ends with it.
            with output.open("wb") as stdout, output.with_suffix(".err").open("wb") as stderr:
                process = await asyncio.create_subprocess_exec(
                    *(*command, probe.name, str(os.getpid())),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    env={**environ, **own},
                    start_new_session=True,
                )
            try:
                code = await process.wait()
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return _answer(output, code)

    async def all_asked() -> dict[str, Answer | Failure]:
        tasks = [asyncio.create_task(asked(one, folder / f"output-{place}")) for place, one in enumerate(probes)]
        # At its end, the loop cancels those that are late, and waits until they have ended their processes.
        await asyncio.wait(tasks, timeout=limit_s)
        late = Failure(kind="timeout", message=f"no answer within {limit_s:.0f} s")
        return {one.name: task.result() if task.done() else late for one, task in zip(probes, tasks, strict=True)}

    return asyncio.run(all_asked())


def _answer(output: Path, code: int) -> Answer | Failure:
    """Return what the process printed, once it has ended. code: its exit code; negative is a signal's number."""
    if code < 0:
        # Real-time signals have no names.
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        memory = ", perhaps for lack of memory" if -code == signal.SIGKILL else ""
        return Failure(kind="killed", message=f"the probe died of {name}{memory}")
    if code > 0:
        stderr = output.with_suffix(".err").read_text(errors="replace")
        return Failure(kind="error", message=error_line(stderr) or f"exit code {code} without a message")
    with suppress(ValidationError):
        answer = Answer.model_validate_json(output.read_bytes())
        if answer.model_fields_set:
            return answer
    return Failure(kind="garbage", message="the probe exited with code 0, but its output is invalid")


def error_line(stderr: str) -> str:
    """Return the last line that begins with an error's name, because advice may follow it; otherwise the last line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    named = [line for line in stderr.splitlines() if _ERROR_LINE.match(line)]
    line = (named or lines or [""])[-1].strip()
    return line if len(line) <= LONGEST_QUOTE else line[: LONGEST_QUOTE - 3] + "..."


if __name__ == "__main__":
    main()
