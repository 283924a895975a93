"""What does measuring cost? The tool's loop against a bare one, over the same model, alternating in one process.

The tool's block is worker.timing.train with its clock, its progress file and its sampler process; the bare block
launches the same steps, from Python or as a CUDA graph, and does nothing else, with the sampler stopped. Both are timed
from outside, in the same way: synchronise, perf_counter, block, synchronise, perf_counter. Blocks are a step or
two long and run tool, bare, bare, tool, ..., without a pause: a host that swings by tens of per cent within seconds
then swings for both, and a card at its power limit, which would clock higher after a pause, gets none. Each pair gives
a ratio; the mean of the medians of eight parts of them and its 95 % interval are printed, one line a mode. Each mode
has a process of its own.

    python benchmarks/overhead.py --mode baseline-bf16 --mode te-fp8 --pairs 400

A block lasts from the start of its first step to the end of its last. What a loop does around them (a tensor for the
losses, reading it and the clock: about 2 ms on an H200) a run pays once for all its timed steps; it is left out. Exits
with 1 where a ratio is further from 1 than 0.5 %. It is a benchmark: run it on an idle machine, not with the tests.
"""

import argparse
import json
import math
import os
import sys
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch import multiprocessing

from fp8bench.schema.config import RunConfig
from fp8bench.stats.estimate import estimate
from fp8bench.worker import parity
from fp8bench.worker.clock import StepTimes, clock_for
from fp8bench.worker.execution.build import choose, ready_to_train
from fp8bench.worker.execution.decide import decide
from fp8bench.worker.execution.step import NO_MARKS, Launch
from fp8bench.worker.main import gate_of
from fp8bench.worker.parallel import rank_group
from fp8bench.worker.progress import ProgressFile
from fp8bench.worker.subject import make_mode, make_workload
from fp8bench.worker.telemetry import Sampler
from fp8bench.worker.timing import Training, train

BOUND = 0.005
SAMPLER_TIMEOUT_S = 10.0
PARTS = 8
"""Of the pairs, in order: neighbours resemble each other, and the interval is over the parts' medians."""


def main() -> int:
    """Every mode in turn."""
    asked = _parse()
    worst = 0.0
    for label in asked.mode:
        with tempfile.TemporaryDirectory(prefix="fp8bench-overhead-") as folder:
            multiprocessing.start_processes(_measure, args=(label, asked, folder), nprocs=1, start_method="spawn")
            tool, bare = json.loads((Path(folder) / "blocks.json").read_text())
        ratios = [ours / theirs for ours, theirs in zip(tool, bare, strict=True)]
        ends = [part * len(ratios) // PARTS for part in range(PARTS + 1)]
        found = estimate(median(ratios[first:last]) for first, last in pairwise(ends))
        low, high = found.interval or (math.nan, math.nan)
        worst = max(worst, abs(found.value - 1))
        print(
            f"{label}: {found.value:.4f} of the bare loop ({low:.4f} to {high:.4f}), "
            f"{asked.pairs} pairs of {asked.steps} steps, batch {asked.batch_size}, "
            f"a bare step {1e3 * median(bare):.2f} ms",
            flush=True,
        )
    return 0 if worst <= BOUND else 1


def _parse() -> argparse.Namespace:
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description="The cost of measuring: the tool's loop against a bare one.")
    parser.add_argument("--mode", action="append", help="repeatable [baseline-bf16; on a GPU te-fp8 too]")
    parser.add_argument("--workload", default="vit-huge" if on_gpu else "vit-micro")
    parser.add_argument("--batch-size", type=int, default=64 if on_gpu else 16)
    parser.add_argument("--pairs", type=int, default=200, help="of blocks, one of each kind")
    parser.add_argument("--steps", type=int, default=2, help="in a block")
    parser.add_argument(
        "--cuda-graphs", choices=("on", "off"), default="on" if on_gpu else "off", help="replay each step, or not"
    )
    parser.add_argument("--te-attention", choices=("te", "sdpa"), default="te", help="of te modes")
    parser.add_argument("--warmup", type=int, default=11, help="steps before the first pair")
    asked = parser.parse_args()
    if asked.pairs < PARTS:
        parser.error(f"--pairs {asked.pairs} are too few for an interval: use {PARTS} or more")
    asked.mode = asked.mode or (["baseline-bf16", "te-fp8"] if on_gpu else ["baseline-bf16"])
    return asked


def _measure(_rank: int, label: str, asked: argparse.Namespace, folder: str) -> None:
    name, _, recipe = label.partition(":")
    config = RunConfig(
        mode=name,
        recipe=recipe or None,
        workload=asked.workload,
        device="cuda" if torch.cuda.is_available() else "cpu",
        world_size=1,
        batch_size=asked.batch_size,
        warmup=asked.warmup,
        steps=asked.steps,
        compile="off",
        cuda_graphs=asked.cuda_graphs,
        data="device",
        workers=0,
        seed=0,
        te_attention=asked.te_attention,
    )
    with rank_group(config, 0, 0, f"file://{folder}/rendezvous") as device:
        mode, workload = make_mode(config), make_workload(config)
        mode.check(device)
        choice = choose(config, mode, device, workload)
        proof = parity.prove(mode, workload, 0, device)
        with ready_to_train(config, 0, device, mode, workload, proof.model, choice) as (parts, batches):
            with Sampler(device, 0) as sampler:
                sampler.wait_ready(SAMPLER_TIMEOUT_S)
                progress = ProgressFile(Path(folder) / "progress")
                tool = ToolLoop(progress)
                bare_block(Training(Launch(parts), batches, device), choice.warmup(asked.warmup))
                settled = decide(
                    config, parts, choice, batches, gate_of(proof, lambda: make_mode(config)), progress.stage
                )
                training = Training(settled.launch, batches, device)
                bare_block(training, asked.steps)
                kinds = {"tool": tool.block, "bare": bare_block}
                times: dict[str, list[float]] = {kind: [] for kind in kinds}
                for pair in range(asked.pairs):
                    for kind in ("tool", "bare") if pair % 2 == 0 else ("bare", "tool"):
                        sampler.pause(kind == "bare")
                        times[kind].append(kinds[kind](training, asked.steps))
                sampler.pause(False)
    (Path(folder) / "blocks.json").write_text(json.dumps([times["tool"], times["bare"]]))
    # As the tool's own ranks do: nothing is left but to tear native libraries down, of which several complain.
    os._exit(0)


class ToolLoop:
    """The loop as fp8bench runs it."""

    def __init__(self, progress: ProgressFile) -> None:
        self.progress = progress

    def block(self, training: Training, steps: int) -> float:
        """Seconds a step."""
        clock = StepsOnly(training.device)
        train(replace(training, clock=lambda _device: clock), steps, lambda _step: self.progress.step())
        return (clock.ended_s - clock.began_s) / steps


class StepsOnly:
    """The tool's clock, and the time of its first step's start and its last step's end from outside."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._clock = clock_for(device)
        self.began_s = self.ended_s = math.nan
        self.data_ready = self._clock.data_ready
        self.forward_done = self._clock.forward_done
        self.backward_done = self._clock.backward_done

    def start_step(self) -> None:
        """The first one starts the block."""
        if math.isnan(self.began_s):
            self.began_s = _now(self._device)
        self._clock.start_step()

    def finish(self) -> StepTimes:
        """Ends the block."""
        self.ended_s = _now(self._device)
        return self._clock.finish()


def bare_block(training: Training, steps: int) -> float:
    """Seconds a step of the same work, with nothing beside it."""
    start = _now(training.device)
    for _ in range(steps):
        batch = next(training.batches)
        training.launch(batch, NO_MARKS)
    return (_now(training.device) - start) / steps


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()


if __name__ == "__main__":
    sys.exit(main())
