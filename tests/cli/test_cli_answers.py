"""Words of what commands answer, of a folder with records in which they change nothing."""

import pytest
from cli.calling import invoked
from cli.home import cases

ANSWERED = """
compare p5.48xlarge p5 --columns instance,mode | p5
compare p4d --price-as-of 2020-01-01 --format markdown | no price: | the earliest is of 2023-11-15
compare h200-1x --purchase spot --price-as-of 2020-01-01 | none of 'h200-1x' is spot
compare p5 --reference p5.48xlarge:baseline-bf16 --wide | reference | Which mode?
compare h200-1x --price h200-1x=2 --columns mode,price | 2.00
compare p4d p5 --group-by machine | machine: unknown
compare p4d p5 --batch-size 64 --format answer | "which_instance"
compare p5 --kind gemm --format csv | run_id,
prices | show | update | set
prices show p5e | no price [ | On-demand column is empty | Without a price: p5e (on_demand).
prices show p5 --purchase spot | spot
list modes | te-fp8 | torchao-float8
list workloads | timm:NAME | timm:convnext_base | llm-7b
list modes --fields | amax_history_len | a whole number from 1 to 65536
explain p5:te-fp8 --format markdown | part of a step
check --plan | Plan: 
numerics --help | --layer
numerics formats --help | --cast
numerics formats --cast -0.78251332044 | -0.8125 | -0.75
numerics formats --cast nan,-0 --dtype float8_e4m3fn --format json | "becomes": "nan" | "becomes": -0.0
report --help | --plot price-performance
run --help | --help-all
run --dry-run --mode te-fp8 --aa --precision 1% | would run 14 to 30 rounds of these
run --dry-run --mode te-fp8 --mode baseline-bf16 | cannot run here: te-fp8:delayed needs an NVIDIA GPU | time: unknown
run --dry-run --mode baseline-bf16 --price 2 | no record here of baseline-bf16 | the machine is 2.00 USD an hour
run --dry-run --mode baseline-bf16 --compile blocks | each block by itself; each step launched from Python
run --dry-run --mode baseline-bf16 --cuda-graphs on | replayed as a CUDA graph (--cuda-graphs on) | nothing would run
run --dry-run --instance my-box --price 3.20 --json | "instance": "my-box" | "usd_per_hour": 3.2
run --dry-run --config article.yaml | by variant | baseline-bf16 (batch 8)
"""


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(("command", "words"), cases(ANSWERED))
def test_the_answer_has_these_words(command, words):
    done = invoked(*command)
    said = " ".join(done.stdout.split())

    assert done.exit_code == 0, done.output
    assert [word for word in words if word not in said] == [], done.stdout
