"""What a rank asks its workload before anything is built."""

import pytest
from builders import config
from outside.outside_plugins import TinyLinear

from fp8bench.modes.baseline import BaselineBF16
from fp8bench.modes.torchao import TorchAOFloat8
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.worker.rank_report import out_of_memory
from fp8bench.worker.subject import check_workload, make_workload

LLM = {"workload": "llm-micro", "device": "cpu", "world_size": 1}


def test_a_workload_takes_the_fields_that_it_names():
    workload = make_workload(config(**LLM, sequence_length=32))
    assert workload.sequence_length == 32
    assert make_workload(config(**LLM)).sequence_length == 64


@pytest.mark.slow
def test_tokens_that_do_not_fill_fp8s_gemms_are_refused_in_fp8_alone():
    run = config(**LLM, batch_size=3, sequence_length=33)
    check_workload(make_workload(run), run, BaselineBF16())
    with pytest.raises(ModeUnavailable, match="batch 3 x sequence 33 are 99"):
        check_workload(make_workload(run), run, TorchAOFloat8())


def test_a_workload_that_knows_no_sequence_length_refuses_one():
    with pytest.raises(ModeUnavailable, match=r"takes no sequence length \(--sequence-length 512\)"):
        check_workload(TinyLinear(), config(workload="outside-linear", sequence_length=512), BaselineBF16())


def test_out_of_memory_a_shorter_sequence_helps_where_there_is_one():
    error = MemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...")
    of_tokens = out_of_memory(0, config(workload="llm-1b", batch_size=8, sequence_length=2048), error)
    assert "Lower --batch-size (now 8 a GPU) or --sequence-length (now 2048), use --activation" in of_tokens.remedy
    assert "Tried to allocate 2.00 GiB" in of_tokens.what
    assert "--sequence-length" not in out_of_memory(0, config(), error).remedy
