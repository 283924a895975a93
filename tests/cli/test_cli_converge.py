"""`fp8bench converge`: what it prints where, what it keeps and draws, and what it refuses before it begins."""

import json
from functools import partial

import pytest
from cli.calling import invoked
from report.made_converge import Ranks

from fp8bench.kinds.converge.measure import ConvergeRecord
from fp8bench.schema.errors import UsageError

MODES = ("--mode", "baseline-bf16", "--mode", "baseline-fp32")
SMALL = ("--workload", "outside-language", "--batch-size", "2", "--sequence-length", "16", "--steps", "100")

pytestmark = pytest.mark.usefixtures("outside_plugins")


@pytest.fixture
def ranks(monkeypatch):
    """What stands for processes."""
    made = Ranks()
    monkeypatch.setattr("fp8bench.launch.processes.watch.SpawnExecutor", lambda *_given: made)
    return made


@pytest.fixture
def converge(tmp_path, monkeypatch, ranks):
    """Call the command in a folder of its own, without a GPU; what it raises is raised here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "book.txt").write_bytes(bytes(range(256)) * 40)
    return partial(invoked, "converge", *SMALL, "--text", "book.txt")


def kept(tmp_path):
    return [ConvergeRecord.model_validate_json(path.read_text()) for path in tmp_path.glob("results/*/*.json")]


@pytest.mark.slow
def test_a_table_and_an_answer_on_stdout_progress_on_stderr_and_a_record_in_the_results(converge, tmp_path):
    done = converge(*MODES, "--seeds", "2", "--plot", "curves.svg")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "outside-language: 100 steps of 2 x 16 bytes of book.txt, on cpu (CPU)"
    assert "baseline-fp32 shows no difference at equal steps" in done.stdout
    [record] = kept(tmp_path)
    assert (record.status, record.config.seeds, len(record.trainings)) == ("ok", (0, 1), 4)
    assert "1 of 4: baseline-bf16, seed 0, 100 steps" in done.stderr
    assert "baseline-bf16, seed 0: loss 2.2454 nats on what is held out, after 100 steps of 100 ms" in done.stderr
    assert f"kept as results/cpu/{record.run_id}.json" in done.stderr
    assert "drawn as curves.svg" in done.stderr
    assert (tmp_path / "curves.svg").exists()


@pytest.mark.slow
def test_a_price_makes_money_of_time(converge, tmp_path):
    converge(*MODES)
    done = invoked("compare", "cpu", "--kind", "converge", "--price", "cpu=36", "--format", "json")
    [found] = json.loads(done.stdout)
    row = found["rows"][1]
    assert row["usd_per_hour"] == 36
    assert row["equal_money_usd"] == pytest.approx(100 * 0.1 * 36 / 3600)


def test_a_picture_of_no_known_format_is_refused_before_anything_is_trained(converge, ranks):
    with pytest.raises(UsageError, match="its name ends in no known format"):
        converge(*MODES, "--plot", "curves.bmp")
    assert ranks.ran == []
