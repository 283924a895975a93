"""What a shell is offered. torch is not imported for it."""

import pytest
from builders import measured
from cli.calling import keep


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("fp8bench comp", {"compare"}),
        ("fp8bench run --price-", {"--price-per-gpu"}),
        ("fp8bench run --mode te-b", {"te-bf16"}),
        ("fp8bench run --mode te-fp8:", {"te-fp8:delayed", "te-fp8:current", "te-fp8:block", "te-fp8:mxfp8"}),
        ("fp8bench run --instance lambda-1x", {"lambda-1x-h100", "lambda-1x-b200"}),
        ("fp8bench run --workload vit-m", {"vit-micro"}),
        ("fp8bench run --compile o", {"on", "off"}),
        ("fp8bench run --cuda-graphs a", {"auto"}),
        ("fp8bench explain te-fp8:delayed/g", {"te-fp8:delayed/graphed"}),
        ("fp8bench explain te-b", {"te-bf16"}),
        ("fp8bench compare p4", {"p4d", "p4de"}),
        ("fp8bench compare p5 --format j", {"json"}),
        ("fp8bench compare p5 --sort spe", {"speed-up"}),
        ("fp8bench explain --mode torchao-float8:t", {"torchao-float8:tensorwise"}),
        ("fp8bench numerics --layer b", {"block"}),
        ("fp8bench list w", {"workloads"}),
        ("fp8bench list workloads vit-m", {"vit-micro"}),
    ],
)
def test_options_and_names_complete(words, offered, fp8bench_in):
    place = str(len(words.split()) - 1)
    done = fp8bench_in(_FP8BENCH_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=place)

    assert (done.code, done.stderr) == (0, "")
    assert set(done.stdout.split()) == offered


def test_a_machine_of_ones_own_completes_too(fp8bench_in, tmp_path):
    keep(measured("my-box"), tmp_path / "results")
    words = {"COMP_WORDS": "fp8bench compare my", "COMP_CWORD": "2"}

    assert fp8bench_in(_FP8BENCH_COMPLETE="complete_bash", **words).stdout.split() == ["my-box"]


def test_a_machine_of_ones_own_completes_where_its_results_are(fp8bench_in, tmp_path):
    keep(measured("my-box"), tmp_path / "elsewhere")
    words = {"COMP_WORDS": "fp8bench compare my", "COMP_CWORD": "2", "FP8BENCH_RESULTS_DIR": "elsewhere"}

    assert fp8bench_in(_FP8BENCH_COMPLETE="complete_bash", **words).stdout.split() == ["my-box"]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("fp8bench compare my-box --reference my-box:te-b", {"my-box:te-bf16"}),
        (
            "fp8bench compare my-box --reference my-box:te-bf16/c",
            {"my-box:te-bf16/compiled", "my-box:te-bf16/compiled+graphed"},
        ),
        ("fp8bench explain my-box:te-bf16/b", {"my-box:te-bf16/blocks", "my-box:te-bf16/blocks+graphed"}),
        ("fp8bench explain my-box:nothing/b", set()),
    ],
)
def test_a_row_completes_with_its_variants(words, offered, fp8bench_in, tmp_path):
    keep(measured("my-box"), tmp_path / "results")
    place = str(len(words.split()) - 1)
    done = fp8bench_in(_FP8BENCH_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=place)

    assert (done.code, set(done.stdout.split())) == (0, offered)


def test_the_script_can_be_shown(fp8bench_in):
    done = fp8bench_in("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")

    assert "_FP8BENCH_COMPLETE=complete_bash" in done.stdout
