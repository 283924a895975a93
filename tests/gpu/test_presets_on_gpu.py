"""What only a GPU can show of the articles' presets: every variant of them runs, and is executed as it says."""

import json
import subprocess
import sys

import pytest
from gpu.this_gpu import needs_fp8, needs_gpu

from fp8bench.schema.files import ROOT

pytestmark = [
    pytest.mark.gpu,
    needs_gpu,
    needs_fp8,
    pytest.mark.timeout(1800),
]

SHORT = ("--workload", "vit-micro", "--rounds", "1", "--warmup", "3", "--steps", "5", "--min-time", "0", "--allow-busy")


@pytest.fixture
def records(tmp_path):
    """Those of a preset's variants, of one session."""
    pytest.importorskip("transformer_engine.pytorch")

    def run(preset, *words):
        path = ROOT / "configs" / "presets" / preset
        done = subprocess.run(
            [sys.executable, "-m", "fp8bench", "run", "--config", str(path), "--json", *SHORT, *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=1700,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def seen(record):
    compiled = record["evidence"]["compile"]["enabled"]
    return record["config"]["mode"], record["config"]["batch_size"], compiled


def test_the_first_articles_variants_run_eagerly_at_both_batch_sizes(records):
    modes = ("baseline-bf16", "te-bf16", "te-fp8")
    assert [seen(one) for one in records("article-1.yaml", "--gpus", "1")] == [
        (mode, size, False) for size in (64, 128) for mode in modes
    ]


def test_the_second_articles_variants_are_compiled_where_it_compiles(records):
    found = records("article-2.yaml")
    assert [seen(one) for one in found] == [
        *(("baseline-bf16", 16, False), ("torchao-float8", 16, False)),
        *(("baseline-bf16", 16, True), ("torchao-float8", 16, True), ("torchao-float8", 32, True)),
        *(("te-fp8", 16, False), ("te-fp8", 32, False)),
    ]
    assert len({one["session"]["session_id"] for one in found}) == 1


def test_each_variant_finds_a_batch_size_of_its_own(records, tmp_path):
    (tmp_path / "auto.yaml").write_text(
        "workload: vit-huge\ncompile: off\ncuda_graphs: off\ngpus: 1\nvariants:\n"
        "  - {mode: baseline-bf16, batch_size: 64}\n  - {mode: te-fp8, batch_size: auto}\n"
    )
    found = records(tmp_path / "auto.yaml", "--workload", "vit-huge")
    sizes = {one["config"]["mode"]: one["config"]["batch_size"] for one in found}
    assert sizes["baseline-bf16"] == 64
    assert sizes["te-fp8"] > 64
