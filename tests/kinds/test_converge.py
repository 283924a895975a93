"""What `fp8bench converge` prepares, which processes it starts, and the record that comes of it."""

import os
import sys
from dataclasses import replace
from datetime import date

import pytest
from builders import machine_called, workload_facts
from report.made_converge import BASELINE, Ranks

from fp8bench.config.options import read
from fp8bench.kinds.converge import KIND, measure
from fp8bench.kinds.converge.measure import WORKLOADS, ConvergeRequest, in_turns, prepare, task_of
from fp8bench.launch.place import register
from fp8bench.launch.signals import Interrupt
from fp8bench.machine.identity import together
from fp8bench.records import results
from fp8bench.schema.errors import Interrupted, ModeUnavailable, RunFailed, UsageError
from fp8bench.workloads.text import HELD_OUT

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
TORCHRUN = {
    **NO_GPU,
    **{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"},
    **{"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"},
}
MODES = (BASELINE, "baseline-fp32")
WORDS = {"workload": "outside-language", "batch_size": "2", "sequence_length": "16", "steps": "100"}

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("outside_plugins")]


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "book.txt"
    file.write_bytes(bytes(range(256)) * 40)
    return str(file)


@pytest.fixture
def prepared(tmp_path, text):
    """Of two modes, without a GPU."""

    def made(*modes, environ=NO_GPU, **words):
        values = {**WORDS, "text": text, "results_dir": tmp_path / "results", "modes": modes or MODES, **words}
        return prepare(read(ConvergeRequest, values, "converge"), environ)

    return made


UNSUPPORTED = {"status": "unsupported", "reason": "no such GPU", "cause": "unavailable", "remedy": "Buy one"}
BROKEN = {"status": "failed", "reason": "it broke", "cause": "crash", "remedy": "Fix it", "log": "Traceback"}


def trained(prepared, ranks, lines=None):
    return measure.measure(prepared, (lines if lines is not None else []).append, ranks)


class TestPrepare:
    def test_what_a_cpu_trains_by_default(self, prepared, monkeypatch):
        monkeypatch.setitem(WORKLOADS, "cpu", "outside-language")
        words = dict.fromkeys(("workload", "batch_size", "steps"))
        config = prepared(**words).config.config
        expected = {
            **{"workload": "outside-language", "batch_size": 16, "steps": 40, "seeds": (0, 1, 2), "world_size": 1},
            **{"optimizer": "adamw", "learning_rate": 2e-3, "rate_warmup": 4, "validate_every": 5},
            **{"validation_batches": 8, "compile": "auto", "cuda_graphs": "auto", "te_attention": "te"},
        }
        assert config.model_dump(include=set(expected)) == expected

    def test_words_become_numbers(self, prepared):
        words = {"seed": "7", "seeds": "2", "validate_every": "500", "learning_rate": "0.01", "sizes": ("depth=1",)}
        config = prepared(**words, optimizer="sgd", gpus="2", compile="off").config.config
        assert (config.seeds, config.validate_every, config.learning_rate) == ((7, 8), 100, 0.01)
        assert config.sizes == {"depth": 1, "sequence_length": 16}
        assert (config.optimizer, config.world_size, config.compile) == ("sgd", 2, "off")

    def test_the_text_is_named_without_its_folder_and_told_if_it_is_read_again_and_again(self, prepared, text):
        job = prepared().config
        assert job.config.text.name == "book.txt"
        assert os.path.dirname(text) not in job.config.model_dump_json()
        assert task_of(job, *MODES[:1], 0).given["plan"]["text_file"] == text
        [warning] = prepared(steps="1000").warnings
        assert warning == "every byte of book.txt is trained on 3.3 times"
        assert prepared().warnings == ()

    @pytest.mark.parametrize(
        ("words", "told"),
        [
            ({"modes": (BASELINE,)}, "baseline-bf16 alone was named, and there is nothing to compare its loss with"),
            ({"modes": (BASELINE,)}, "Name the reference first: --mode baseline-fp32 --mode baseline-bf16"),
            ({"modes": (BASELINE, BASELINE)}, "baseline-bf16 alone was named"),
            ({"workload": "lllm"}, "unknown workload"),
            ({"sizes": ("layers=2",)}, "unknown size of outside-language 'layers'"),
            ({"sizes": ("vocab_size=512",)}, "unknown size of outside-language 'vocab_size'"),
            ({"seeds": "0"}, "--seeds: invalid value '0': .* greater than 0"),
            ({"seeds": "101"}, "--seeds: invalid value '101': the most is 100"),
            ({"learning_rate": "2"}, "--learning-rate: invalid value '2': the most is 1"),
            ({"optimizer": "adamm"}, "unknown --optimizer 'adamm'"),
        ],
    )
    def test_what_means_nothing_is_refused(self, prepared, words, told):
        with pytest.raises(UsageError, match=told):
            prepared(**words)

    def test_a_model_whose_library_cannot_be_imported_is_refused_before_anything_starts(
        self, prepared, monkeypatch, tmp_path
    ):
        monkeypatch.setitem(sys.modules, "transformers.models.llama", None)
        with pytest.raises(ModeUnavailable, match="need transformers, which cannot be imported") as refused:
            prepared(workload="llm-micro")

        assert refused.value.remedy == "Install it with `pip install 'fp8bench[llm]'`"
        assert not (tmp_path / "results").exists()

    @pytest.mark.parametrize("size", [0, 12])
    def test_a_file_of_hardly_any_bytes_is_refused_with_how_many_are_needed(self, size, prepared, tmp_path):
        file = tmp_path / "short.txt"
        file.write_bytes(b"x" * size)
        with pytest.raises(UsageError, match=f"has {size} bytes, which is not enough text") as refused:
            prepared(text=str(file))
        needed = int(refused.value.remedy.removeprefix("Give a text of ").split()[0].replace(",", ""))

        file.write_bytes(b"x" * needed)
        assert prepared(text=str(file)).config.config.text.name == "short.txt"
        file.write_bytes(b"x" * (needed - HELD_OUT))
        with pytest.raises(UsageError, match="too short"):
            prepared(text=str(file))

    def test_under_torchrun_the_ranks_of_all_nodes_train_on_the_same_text(self, prepared, text):
        job = prepared(environ=TORCHRUN).config
        for config in (job.config, task_of(job, BASELINE, 0).config):
            assert (config.world_size, config.nodes) == (4, 2)
        with pytest.raises(UsageError, match="--gpus 2 disagrees with torchrun, which made 4 processes"):
            prepared(environ=TORCHRUN, gpus="2")
        alike = prepared().alike
        with open(text, "ab") as file:
            file.write(b"!")
        assert prepared().alike.keys() == alike.keys()
        assert prepared().alike != alike


class TestTraining:
    def test_modes_alternate_seed_by_seed(self, prepared):
        ranks, lines = Ranks(), []
        trained(prepared(seeds="2"), ranks, lines)
        assert ranks.ran == [(MODES[0], 0), (MODES[1], 0), (MODES[1], 1), (MODES[0], 1)]
        assert lines[0] == "1 of 4: baseline-bf16, seed 0, 100 steps"
        loss = "loss 2.2454 nats on what is held out, after 100 steps of 100 ms"
        assert lines[1] == f"baseline-bf16, seed 0: {loss}"
        assert ranks.closed

    def test_processes_are_given_the_plan(self, prepared, monkeypatch):
        given = []

        class Spawn(Ranks):
            def run(self, task, watch=None):
                given.append(task)
                return super().run(task, watch)

        monkeypatch.setattr("fp8bench.kinds.converge.measure.Executor", Spawn)
        job = prepared(timeout_s="50")
        assert measure.measure(job, lambda _line: None).status == "ok"
        assert given == [task_of(job.config, mode, seed) for mode, seed in in_turns(job.config.config)]
        assert {task.timeout_s for task in given} == {50.0}
        assert {task.target for task in given} == {"fp8bench.worker.convergence:measure"}

    def test_the_record_has_every_training_by_mode_and_seed_and_survives_the_store(self, prepared, tmp_path):
        job = prepared(seeds="2")
        record = trained(job, Ranks())
        assert [(one.mode, one.seed) for one in record.trainings] == [(mode, seed) for mode in MODES for seed in (0, 1)]
        assert (record.status, record.instance, record.work.tokens_per_step) == ("ok", "cpu", 64)
        assert record.fingerprint["text"] == job.config.config.text.sha256
        register(job, None, date(2026, 5, 1), lambda _line: None)
        path = results.write(record, tmp_path / "results")
        assert results.read_of_kind(path, KIND.record) == record
        assert KIND.exit_code(record, ConvergeRequest(modes=MODES)) == 0

    def test_of_several_nodes_each_is_on_record_and_all_together_are_one_machine(self, prepared):
        machines = (machine_called("a"), machine_called("b"))
        marks = ("unlike nodes: CPU cores",)
        job = replace(prepared(environ=TORCHRUN), machines=machines)
        record = trained(job, Ranks(machines=machines, marks=marks))
        assert [(one.node, one.ranks, one.machine) for one in record.environment.nodes] == [
            (0, (0, 1), machines[0]),
            (1, (2, 3), machines[1]),
        ]
        assert record.machine == together(machines)
        assert record.warnings == (*job.warnings, *marks)
        assert record.work.tokens_per_step == 4 * workload_facts().units_per_step

    def test_a_node_that_is_gone_ends_the_call_and_is_no_finding_about_a_mode(self, prepared, tmp_path):
        class Nodes(Ranks):
            def require_ready(self):
                if len(self.ran) == 2:
                    raise RunFailed("node 1 is gone", "Start all nodes again")

        lines = []
        with pytest.raises(RunFailed, match="node 1 is gone"):
            trained(prepared(), Nodes({(MODES[1], 0): BROKEN}), lines)
        [log] = (tmp_path / "results").rglob("*.log")
        assert (log.read_text(), lines[-1]) == ("Traceback\n", f"tracebacks and stacks are in {log}")
        lines = []
        record = trained(prepared(), Ranks(), lines)
        assert lines[0] == "resumed: 1 of 6 trainings were done before"
        assert {one.status for one in record.trainings} == {"ok"}
        assert list((tmp_path / "results").rglob("*.log")) == []

    def test_a_step_of_all_ranks_counts_and_not_how_many_there_are(self, prepared):
        one = trained(prepared(batch_size="4"), Ranks())
        two = trained(prepared(batch_size="2", gpus="2"), Ranks())
        assert one.fingerprint == two.fingerprint


class TestStopped:
    def test_a_mode_that_cannot_run_is_not_tried_again_and_the_others_go_on(self, prepared):
        ranks, lines = Ranks({("te-fp8:delayed", 0): UNSUPPORTED}), []
        record = trained(prepared(*MODES, "te-fp8"), ranks, lines)
        assert [turn for turn in ranks.ran if turn[0].startswith("te")] == [("te-fp8:delayed", 0)]
        assert (record.status, len(record.trainings)) == ("ok", 7)
        assert "te-fp8:delayed: no such GPU. Buy one." in lines
        assert KIND.exit_code(record, ConvergeRequest(modes=(*MODES, "te-fp8"))) == 3
        assert KIND.exit_code(record, ConvergeRequest()) == 0

    def test_where_nothing_can_be_compared_the_record_says_why(self, prepared, tmp_path):
        lines = []
        record = trained(prepared(), Ranks({(MODES[1], 0): BROKEN}), lines)
        assert (record.status, record.reason, record.cause) == ("failed", "it broke", "crash")
        assert KIND.exit_code(record, ConvergeRequest(modes=MODES)) == 5
        [log] = (tmp_path / "results").rglob("*.log")
        assert (log.read_text(), lines[-1]) == ("Traceback\n", f"tracebacks and stacks are in {log}")


class TestResume:
    def test_a_call_that_was_interrupted_resumes_by_mode_and_seed_and_one_of_other_settings_does_not(
        self, prepared, tmp_path
    ):
        with pytest.raises(Interrupted, match="3 of 6 trainings are kept: run the same command again") as stopped:
            trained(prepared(), Ranks(interrupt=(MODES[0], 1)))
        assert stopped.value.exit_code == 143
        other = Ranks()
        trained(prepared(learning_rate="0.5"), other)
        assert len(other.ran) == 6
        ranks, lines = Ranks(), []
        record = trained(prepared(), ranks, lines)

        assert ranks.ran == [(MODES[0], 1), (MODES[0], 2), (MODES[1], 2)]
        assert lines[0] == "resumed: 3 of 6 trainings were done before"
        assert len(record.trainings) == 6
        assert list((tmp_path / "results").rglob("*")) == [tmp_path / "results" / "cpu"], "the record has all of it"

    def test_a_line_that_a_crash_cut_short_is_trained_again(self, prepared, tmp_path):
        with pytest.raises(Interrupted):
            trained(prepared(), Ranks(interrupt=(MODES[1], 1)))
        [kept] = (tmp_path / "results").rglob(".converge-*.jsonl")
        kept.write_text(kept.read_text()[:-200])
        ranks = Ranks(interrupt=(MODES[0], 1))
        with pytest.raises(Interrupted, match="3 of 6"):
            trained(prepared(), ranks)
        assert ranks.ran == [(MODES[1], 0), (MODES[1], 1)]

    def test_the_same_call_twice_at_a_time_is_refused(self, prepared):
        class Nested(Ranks):
            def run(self, task, watch=None):
                with pytest.raises(UsageError, match="this very comparison is in use by process"):
                    trained(prepared(), Ranks())
                raise Interrupt(2)

        with pytest.raises(Interrupted):
            trained(prepared(), Nested())
