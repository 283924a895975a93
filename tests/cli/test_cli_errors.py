"""What is wrong is one line on stderr, with its remedy and an exit code."""

import pytest
from cli.calling import one_line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("compar", "p4d"), "compare"),
        (("compare", "p4dd"), "Did you mean 'p4d'? See every one with `fp8bench list instances`"),
        (("compare", "p5", "--format", "jsn"), "Did you mean 'json'?"),
        (("compare", "p5", "--purchase", "on-demand"), "Did you mean 'on_demand'?"),
        (("compare", "p5", "--workload", "vit-hug"), "Did you mean 'vit-huge'?"),
        (("compare", "p5", "--reference", "p55:baseline-bf16"), "Did you mean 'p5'?"),
        (("list", "modes", "--jsn"), "--json"),
        (("run", "--dry-run", "--mode", "te-fp9"), "Did you mean 'te-fp8'? See every one with `fp8bench list modes`"),
        (("run", "--dry-run", "--mode", "te-fp8:curent"), "Did you mean 'current'?"),
        (("run", "--dry-run", "--workload", "vit-hug"), "Did you mean 'vit-huge'?"),
        (("run", "--dry-run", "--instance", "p4dd"), "Did you mean 'p4d'?"),
        (("compare", "p4"), "Did you mean 'p4d'?"),
        (("compare", "h100"), "Did you mean 'p5', 'p5-4xlarge', 'a3-highgpu-8g' or 'a3-megagpu-8g'?"),
        (("run", "--dry-run", "--mode", "te-pf8"), "Did you mean 'te-fp8'?"),
        (("rnu",), "Did you mean 'run'? See"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_unknown_name_is_wrong_usage_and_the_line_has_the_nearest_name(arguments, words, fp8bench_in):
    outcome = fp8bench_in(*arguments)

    assert words in one_line(outcome)
    assert outcome.code == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("compare",), "Missing argument 'INSTANCE...'"),
        (("compare", "p5", "--price-as-of", "tomorrow"), "--price-as-of 'tomorrow' is not a date"),
        (("compare", "p5", "--reference", "p5"), "--reference 'p5' is not INSTANCE:MODE"),
        (("compare", "p5", "--reference", "p4d:baseline-bf16"), "There are: p5:baseline-bf16"),
        (("compare", "p6-b200"), "no record for instance 'p6-b200': there is no folder results. Run `fp8bench run"),
        (("run", "--dry-run", "--steps", "0"), "--steps: invalid value '0'"),
        (("run", "--dry-run", "--compile", "maybe"), "--compile: invalid value 'maybe'"),
        (("run", "--dry-run", "--precision", "often"), "--precision: invalid value 'often'"),
        (("run", "--dry-run", "--rounds", "0"), "--rounds: invalid value '0'"),
        (("run", "--dry-run", "--sequence-length", "1"), "--sequence-length: invalid value '1'"),
        (
            ("run", "--dry-run", "--workload", "vit-huge", "--sequence-length", "512"),
            "--sequence-length 512 does not apply to 'vit-huge', whose samples have no length to choose. Omit "
            "it, or name a language model with --workload: llm-1b, llm-7b, llm-micro",
        ),
        (
            ("run", "--dry-run", "--rounds", "3", "--precision", "1%", "--max-rounds", "2"),
            "--max-rounds 2 is less than --rounds 3",
        ),
        (
            ("run", "--dry-run", "--precision", "1%", "--max-rounds", "12"),
            "--max-rounds 12 ends before --precision can be judged: fewer than 14 processes may not show a state that",
        ),
        (("run", "--dry-run", "--aa", "--mode", "te-fp8", "--rounds", "2"), "--rounds 2 cannot tell how far"),
        (("run", "--dry-run", "--config", "none.yaml"), "cannot read none.yaml: No such file or directory"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments, words, fp8bench_in):
    outcome = fp8bench_in(*arguments)

    assert words in one_line(outcome)
    assert outcome.code == 2


def test_a_gpu_instance_on_a_machine_without_one_is_unsupported_here(fp8bench_in, tmp_path):
    outcome = fp8bench_in("run", "--instance", "p5")

    assert "this machine shows no GPU" in one_line(outcome)
    assert outcome.code == 3
    assert list(tmp_path.iterdir()) == []


def test_a_config_file_that_is_not_yaml_is_told_by_file_and_line(fp8bench_in, tmp_path):
    (tmp_path / "mine.yaml").write_text("steps: 5\nmode: te-fp8\n  warmup: 1\n")
    outcome = fp8bench_in("run", "--dry-run", "--config", "mine.yaml")

    assert "mine.yaml line 3 is not YAML" in one_line(outcome)
    assert outcome.code == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("steps: 5\nwarmpu: 1\n", ["mine.yaml line 2", "'warmpu'", "Did you mean 'warmup'?"]),
        ("steps: several\n", ["mine.yaml line 1", "steps", "'several'"]),
    ],
    ids=["unknown field", "wrong value"],
)
def test_a_config_file_with_a_wrong_field_is_told_by_file_and_field(text, words, fp8bench_in, tmp_path):
    (tmp_path / "mine.yaml").write_text(text)
    outcome = fp8bench_in("run", "--dry-run", "--config", "mine.yaml")
    line = one_line(outcome)

    assert all(word in line for word in words)
    assert outcome.code == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--foo",), "No such option: --foo"),
        (("list", "modes", "--foo"), "No such option: --foo"),
        (("list", "modes", "foo"), "Got unexpected extra argument"),
        (("run", "--steps"), "Option '--steps' requires an argument"),
        (("foo",), "No such command 'foo'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_the_parser_refuses_is_one_line_too(arguments, words, fp8bench_in):
    outcome = fp8bench_in(*arguments)

    assert one_line(outcome).startswith(f"fp8bench: {words}")
    assert one_line(outcome).endswith(". See `fp8bench --help`.")
    assert outcome.code == 2


def test_a_name_that_is_given_twice_in_a_config_file_is_told_with_both_lines(fp8bench_in, tmp_path):
    (tmp_path / "mine.yaml").write_text("steps: 5\nseed: 1\nsteps: 7\n")
    outcome = fp8bench_in("run", "--dry-run", "--config", "mine.yaml")

    assert "mine.yaml line 3: 'steps' is given twice, the first time on line 1. Keep one of them." in one_line(outcome)
    assert outcome.code == 2


def test_a_mistyped_variable_is_refused_with_the_nearest_name(fp8bench_in):
    outcome = fp8bench_in("run", "--dry-run", FP8BENCH_BATCHSIZE="32")

    assert "'FP8BENCH_BATCHSIZE'. Did you mean 'FP8BENCH_BATCH_SIZE'?" in one_line(outcome)
    assert outcome.code == 2


def test_a_wrong_variable_is_told_by_its_name(fp8bench_in):
    outcome = fp8bench_in("run", "--dry-run", FP8BENCH_STEPS="many")

    assert "FP8BENCH_STEPS: invalid value 'many'" in one_line(outcome)
    assert outcome.code == 2


def test_a_results_folder_that_cannot_be_written_is_told_before_anything_runs(fp8bench_in, tmp_path):
    (tmp_path / "taken").write_text("a file")
    outcome = fp8bench_in("run", "--results-dir", "taken/results")

    assert "cannot write results to taken/results" in one_line(outcome)
    assert outcome.code == 2


def test_debug_shows_the_traceback(fp8bench_in):
    outcome = fp8bench_in("--debug", "compare", "p4dd")

    assert outcome.code != 0
    assert "Traceback" in outcome.stderr
    assert "UsageError" in outcome.stderr
