"""`fp8bench converge`: what it prints where, what it keeps and draws. What it refuses is in tests/kinds,
and tests/goldens has what is shown again, by a price, in JSON.
"""

import pytest
from report.made_converge import Ranks

from fp8bench.kinds.converge.measure import ConvergeRecord

MODES = ("--mode", "baseline-bf16", "--mode", "baseline-fp32")
SMALL = ("--workload", "outside-language", "--batch-size", "2", "--sequence-length", "16", "--steps", "100")


@pytest.mark.slow
@pytest.mark.usefixtures("outside_plugins")
def test_a_table_and_an_answer_on_stdout_progress_on_stderr_and_a_record_in_the_results(command, tmp_path, monkeypatch):
    monkeypatch.setattr("fp8bench.launch.processes.watch.SpawnExecutor", lambda *_given: Ranks())
    (tmp_path / "book.txt").write_bytes(bytes(range(256)) * 40)
    done = command("converge", *SMALL, "--text", "book.txt", *MODES, "--seeds", "2", "--plot", "curves.svg")
    lines = done.stdout.splitlines()
    assert lines[0] == "outside-language: 100 steps of 2 x 16 bytes of book.txt, on cpu (CPU)"
    assert "baseline-fp32 shows no difference at equal steps" in done.stdout
    [path] = tmp_path.glob("results/*/*.json")
    record = ConvergeRecord.model_validate_json(path.read_text())
    assert (record.status, record.config.seeds, len(record.trainings)) == ("ok", (0, 1), 4)
    assert "1 of 4: baseline-bf16, seed 0, 100 steps" in done.stderr
    assert "baseline-bf16, seed 0: loss 2.2454 nats on what is held out, after 100 steps of 100 ms" in done.stderr
    assert f"kept as results/cpu/{record.run_id}.json" in done.stderr
    assert "drawn as curves.svg" in done.stderr
    assert (tmp_path / "curves.svg").exists()
