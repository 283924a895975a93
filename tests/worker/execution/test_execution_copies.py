"""Where a proof keeps its copies, and how much room they take."""

import pytest
import torch
from worker.execution.executing import gate, settings, some_parts

from fp8bench.worker.counters import peak_memory
from fp8bench.worker.execution.copies import copied, fits, place_for, size
from fp8bench.worker.execution.decide import copies_size
from fp8bench.worker.execution.reference import plain_steps
from fp8bench.worker.execution.step import Snapshot

GIB = 2**30


@pytest.mark.parametrize(
    ("needed", "peak", "memory", "fit"),
    [(12, 30, 139, True), (12, 30, 49.5, True), (12, 30, 49.4, False), (12, 100, 137, True), (12, 101, 137, False)],
)
def test_copies_stay_on_the_gpu_where_a_step_of_a_quarter_more_has_room_beside_them(needed, peak, memory, fit):
    assert fits(needed * GIB, peak * GIB, int(memory * GIB)) is fit


def test_without_a_gpu_they_are_on_the_host_and_weigh_nothing_there():
    host = torch.device("cpu")
    assert place_for(1, host) == host
    assert peak_memory(host, 0, captured=GIB).peak_allocated_bytes is None


def test_a_copy_does_not_change_with_what_it_was_made_of():
    there = torch.ones(3)
    (kept,) = copied([there], torch.device("cpu"))
    there += 1
    assert kept.tolist() == [1, 1, 1]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_room_that_is_requested_is_what_a_proof_keeps(optimizer, process_group):
    parts, batches = some_parts(warm=1, optimizer=optimizer)
    host = torch.device("cpu")
    before = Snapshot.of(parts, host)
    plain = plain_steps(parts, gate(parts).again, optimizer, [next(batches)], host)
    by_name = (before.weights, plain.weights, plain.gradients, plain.first_gradients, plain.own, *plain.states.values())
    kept = size([*(one for found in by_name for one in found.values()), *before.others, *before.scales, *plain.scales])
    assert copies_size(parts, settings(optimizer=optimizer)) == kept
