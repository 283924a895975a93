"""Ranks, each in a process of its own on a GPU of its own, that decide how their steps are executed and write down what
came of it: with a real capture, or with one that is wrong in one way.

Where there are fewer GPUs than ranks, the ranks share the first one (`staged`).
"""

import json
import os
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from builders import config
from gpu import staged

from fp8bench.schema.errors import Fp8benchError
from fp8bench.worker import memory
from fp8bench.worker.execution.build import choose, ready_to_train
from fp8bench.worker.execution.decide import decide
from fp8bench.worker.execution.step import NO_MARKS, Launch, Replay
from fp8bench.worker.main import gate_of
from fp8bench.worker.memory import peak_memory
from fp8bench.worker.parallel import rank_group
from fp8bench.worker.parity import prove
from fp8bench.worker.subject import make_mode, make_workload
from fp8bench.workloads.llama import LLM1B

AFTERWARDS = 3


class StaleInput(Replay):
    """Never copies a batch in."""

    def __call__(self, _batch, marks):
        return super().__call__(self._batch, marks)


class NoOptimizer(Replay):
    """Captured a step without its end."""

    def __init__(self, parts, batch):
        idle = SimpleNamespace(zero_grad=parts.optimizer.zero_grad, step=lambda: None)
        super().__init__(replace(parts, optimizer=idle), batch)


class NoAllReduce(Replay):
    """Captured a step in which ranks share nothing."""

    def __init__(self, parts, batch):
        with parts.model.no_sync():
            super().__init__(parts, batch)


class FrozenScales(Replay):
    """The scales of the capture for ever."""

    def __init__(self, parts, batch):
        super().__init__(parts, batch)
        self.scales = parts.mode.step_state(parts.plain)
        self.frozen = [scale.clone() for scale in self.scales]

    def __call__(self, batch, marks):
        loss = super().__call__(batch, marks)
        for scale, frozen in zip(self.scales, self.frozen, strict=True):
            scale.copy_(frozen)
        return loss


def reads_back(_block, _inputs, output):
    """Reads a number back from the GPU, which no capture allows."""
    return output * (2 - float(output.detach().abs().sum().item() >= 0))


def reads_back_in_backward(_block, _inputs, output):
    """The same in the backward pass."""
    output.register_hook(lambda gradient: gradient * float(gradient.abs().sum().item() >= 0))
    return output


LAUNCHES = {one.__name__: one for one in (Replay, StaleInput, NoOptimizer, NoAllReduce, FrozenScales)}
HOOKS = {None: None, "forward": reads_back, "backward": reads_back_in_backward}


def settle_here(rank, folder, values, launch="Replay", waits=None, spare=memory.SPARE, layers=None):
    """values: of the configuration. launch: the name of what makes a replay; waits: the pass in which the last block
    waits for the GPU; spare: of the GPU's memory beside copies, where infinity keeps them on the host; layers: of a
    language model, fewer than it has.
    """
    memory.SPARE = spare
    if layers is not None:
        LLM1B.architecture = {**LLM1B.architecture, "num_hidden_layers": layers}
    run = config(**{"warmup": 2, "steps": 3, "data": "device", "workers": 0, "compile": "off", **values})
    if torch.cuda.device_count() < run.world_size and run.cuda_graphs == "auto" and run.parallel != "fsdp":
        run = run.model_copy(update={"cuda_graphs": "off"})  # no capture can hold the copies to the host
    with _group(run, rank, f"file://{folder}/rendezvous") as device:
        outcome = _settled(run, rank, device, LAUNCHES[launch], HOOKS[waits])
    (Path(folder) / f"{rank}.json").write_text(json.dumps(outcome))
    os._exit(0)


@contextmanager
def _group(run, rank, rendezvous):
    if torch.cuda.device_count() >= run.world_size:
        with rank_group(run, rank, rank, rendezvous) as device:
            yield device
        return
    torch.cuda.set_device(0)
    dist.init_process_group(staged.NAME, init_method=rendezvous, rank=rank, world_size=run.world_size)
    try:
        yield torch.device("cuda", 0)
    finally:
        dist.destroy_process_group()


def _settled(run, rank, device, capture, hook):
    mode, workload = make_mode(run), make_workload(run)
    choice = choose(run, mode, device, workload)
    proof = prove(mode, workload, rank, device, choice.strategy)
    if hook is not None:
        proof.model.blocks[-1].register_forward_hook(hook)
    with ready_to_train(run, rank, device, mode, workload, proof.model, choice) as (parts, batches):
        first = Launch(parts)
        for _ in range(choice.warmup(run.warmup)):
            first(next(batches), NO_MARKS)
        try:
            of_gate = gate_of(proof, lambda: make_mode(run))
            found = decide(run, parts, choice, batches, of_gate, lambda _stage: None, capture)
        except Fp8benchError as refusal:
            return {"refused": refusal.what, "cause": refusal.cause}
        losses = [found.launch(next(batches), NO_MARKS).item() for _ in range(AFTERWARDS)]
        split = found.launch.split(batches, AFTERWARDS)
    executed = found.executed.model_dump() if found.executed else {}
    return {
        **executed,
        "graph": found.graph.model_dump(),
        "join": found.join,
        "parallel": found.parallel.model_dump(),
        "gate": proof.parity.model_dump(),
        "losses": losses,
        "warning": found.warning,
        "peak": peak_memory(device, rank, found.captured_peak).peak_allocated_bytes,
        "split": None if split is None else [*split.values()],
    }
