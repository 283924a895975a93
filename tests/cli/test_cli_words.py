"""Words of what commands answer and refuse of a folder with records, in which they change nothing. What is wrong is one
line on stderr, with its remedy and an exit code: an addition to a command adds its lines to the table.
"""

import pytest
from cli.calling import invoked, one_line
from cli.home import cases

from fp8bench.schema.errors import UsageError

ANSWERED = """
compare p5.48xlarge p5 --columns instance,mode | p5
compare p4d --price-as-of 2020-01-01 --format markdown | no price: | the earliest is of 2023-11-15
compare h200-1x --purchase spot --price-as-of 2020-01-01 | none of 'h200-1x' is spot
compare p5 --reference p5.48xlarge:baseline-bf16 --wide | reference | Which mode?
compare h200-1x --price h200-1x=2 --columns mode,price | 2.00
compare p4d p5 --batch-size 64 --filter mode=baseline-bf16 --job 90M --price-as-of 2023-11-15 | 20.0 656 | 4.89 (
compare p4d p5 --batch-size 64 --filter mode=baseline-bf16 --job 90M --purchase spot --price-as-of today | 20.0 158
compare p4d p5 --columns instance,price,break-even --filter step>105 | instance USD/h break-even
compare p4d p5 --price " p5.48xlarge = 60 " --price-as-of 2023-11-15 --columns instance,price | p5 60.00 | p4d 32.77
compare p5 --price p5=6000 --format json | 6000.0, "price_as_of": null, "price_source": "what-if" | "doubtful price"
compare p5 --price p5=6000 --wide --format markdown | | what-if | times the catalogue's
compare p4d p5 --group-by machine | machine: unknown
check --history | 2026-05-01 20:00 | baseline-bf16/eager, 64 x 8: no change in 1 night, too few to tell: 5 or more can.
check --history --format json | "session": "20260501T100000Z-aaaaaa" | "session": "20260502T100000Z-bbbbbb"
prices | show | update | set
prices show p5e | no price [ | On-demand column is empty | Without a price: p5e (on_demand).
prices show p5 --purchase spot | spot
list workloads | timm:NAME | timm:convnext_base | llm-7b
list workloads --format markdown | ViT-Huge/16, 224 px, 632 M parameters |
list workloads --json | "name": "vit-huge-256" | "name": "vit-micro"
list instances | p4d | p5 | h200-1x
list instances --json | "key": "p4d" | "key": "h200-1x"
list modes | baseline-bf16 | te-bf16 | te-fp8 | torchao-float8 | baseline-fp32 | baseline-tf32
list modes --json | "name": "te-bf16" | "name": "torchao-float8"
list modes --fields | amax_history_len | a whole number from 1 to 65536
explain p5:te-fp8 --format markdown | part of a step
numerics formats | float8_e4m3fn 1+4+3 448 0.015625 0.001953 0.125 nan
numerics formats --dtype float8_e5m2 --format json | "specials": [ "inf", "nan" ]
numerics formats --dtype float8_e8m0fnu --format csv | ,1.7014118346046923e+38,5.877471754111438e-39,
numerics formats --cast " 0.3952 , -5e2" --dtype float8_e4m3fn | 0.40625 0.028 0 0101 101 -500 float8_e4m3fn -448*
numerics formats --cast 500 --dtype float8_e4m3fn | 448* | * saturated
numerics formats --cast Infinity --cast -0e5 --dtype float8_e4m3fn | inf float8_e4m3fn - - | -0 0 1 0000 000 | -: no
numerics formats --cast -5e2,inf --dtype float8_e4m3fn --format json | "saturated": true | "value": "inf"
numerics formats --cast 448,1e-4 --dtype float16 --block mxfp8 | float16 - 448 | mxfp8 1 448 | mxfp8 1 0 1 | scale:
numerics formats --cast -0.78251332044 | -0.8125 | -0.75
numerics formats --cast nan,-0 --dtype float8_e4m3fn --format json | "becomes": "nan" | "becomes": -0.0
report --help | INSTANCE Names in the catalogue | Options: -o, --output FILE | --plot price-performance
run --dry-run --mode torchao-float8 --aa --precision 1% | would run 14 to 30 rounds of these
run --dry-run --mode te-fp8 --mode baseline-bf16 | cannot run here: te-fp8:delayed needs an NVIDIA GPU | time: unknown
run --dry-run --mode baseline-bf16 --price 2 | no record here of baseline-bf16 | the machine is 2.00 USD an hour
run --dry-run --mode baseline-bf16 --compile blocks | each block by itself; each step launched from Python
run --dry-run --mode baseline-bf16 --compile off | not compiled; each step launched from Python
run --dry-run --instance h200-1x --mode te-bf16 --cuda-graphs on | each step replayed as one CUDA graph
run --dry-run --instance my-box --price 3.20 --json | "instance": "my-box" | "usd_per_hour": 3.2
run --dry-run --config article.yaml | mode by variant article.yaml | batch_size by variant | baseline-bf16 (batch 8)
"""


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(("command", "words"), cases(ANSWERED))
def test_the_answer_has_these_words(command, words):
    done = invoked(*command)
    said = " ".join(done.stdout.split())

    assert done.exit_code == 0, done.output
    assert [word for word in words if word not in said] == [], done.stdout


REFUSED = """
compare mein | results has records of
compare p4d p5 --group-by sped-up | unknown column 'sped-up' | 'speed-up'
sweep --budget soon | it is not a duration
run --mode baseline-bf16 --trace . | --trace . is a folder
run --config /dev/null/x --dry-run | cannot read /dev/null/x: 
predict p5 --from h200-1x --purchase barter | --purchase 'barter'
scaling p5 --workload llm-1b --project two | --project | 'two'
prices show --purchase stolen | --purchase 'stolen'
explain te-fp8 --batch-size 0 | --batch-size | '0'
explain te-fp8:block | no file, run or mode is called 'te-fp8:block'
numerics --mode torchao-float8:rowise | 'rowwise'
numerics --width x | --width | 'x'
compare h100 | Did you mean 'p5'
compare p6-b200 | no record for instance 'p6-b200' | Run `fp8bench run
compare p5 --format jsn | --format | Did you mean 'json'
compare p5 --purchase on-demand | --purchase | 'on_demand'
compare p5 --workload vit-hug | unknown workload | 'vit-huge'
compare p5 --optimizer adm | --optimizer | 'adam'
compare p5 --reference p55:baseline-bf16 | Did you mean 'p5'
compare p5 --reference p5 | --reference 'p5' is not INSTANCE:MODE
compare p5 --reference :baseline-bf16 | --reference ':baseline-bf16' is not INSTANCE:MODE
compare p5 --workload vit-micro | no record of vit-micro for instance 'p5' | --instance p5 --workload vit-micro
compare p5 --grad-accumulation 2 | in 2 micro-batches | fp8bench run
compare p5 --reference p4d:baseline-bf16 | There are: p5:
compare p5 --reference p5:baseline-bf16/graphed | There are: p5:baseline-bf16/eager
compare p5 --reference p5:baseline-bf16/graph | unknown variant 'graph' | 'graphed'
compare p5 --price-as-of tomorrow | --price-as-of | 'tomorrow'
compare p5 --budget x | --budget | 'x'
numerics formats --cast 0x10 | --cast '0x10' is not a number
scaling p55 --workload llm-1b | unknown instance 'p55'
compare p4d p5 --region us-est-1 | no price is of region 'us-est-1' | us-east-1, us-east-2, us-west-2
compare p4d --batch-size 0 | --batch-size | '0'
compare p4d --batch-size 99999999999999999999 | --batch-size | the most is 10,000,000
compare p5 --grad-accumulation 0 | --grad-accumulation | '0'
compare p4d p5 --job 0 | --job | '0'
compare p4d p5 --job 90MB | --job | '90MB'
compare p4d p5 --job 1e300 | --job | no model is trained on more
compare p4d p5 --price p6-b200=60 | that instance is not compared | give one of: p4d, p5
compare p4d p5 --price p5-=60 | unknown instance 'p5-'
compare p4d p5 --price p5=99999999 | no machine costs more in an hour
compare p4d p5 --price p5 | is not INSTANCE=USD
compare p4d p5 --price =60 | is not INSTANCE=USD
compare p4d p5 --price p5=nan | is not INSTANCE=USD
compare p4d p5 --price p5=1e-30 | is not INSTANCE=USD: a name, and a price above 0
compare p4d p5 --price p5=6_0 | is not INSTANCE=USD
compare p4d p5 --price p5=60 --price p5=61 | gives p5 two prices, 60 and 61
compare p4d p5 --columns instance,prise | unknown column 'prise' | 'price'
compare p4d p5 --columns hours | column 'hours' is of a job
compare p4d p5 --columns mode,,step | unknown column ''
compare p4d p5 --wide --columns mode | --wide and --columns
compare p4d p5 --best-batch --group-by batch | two views of batch sizes
compare p4d p5 --group-by notes | unknown column 'notes'
compare p4d p5 --filter mode | --filter 'mode' is not COLUMN
compare p4d p5 --filter mode= | --filter 'mode=' is not COLUMN
compare p4d p5 --filter mod=x | Did you mean 'mode'
compare p4d p5 --filter mode>te | mode is a word
compare p4d p5 --filter mode=torchao-float8 | no row is left by --filter 'mode=torchao-float8'
compare p4d p5 --filter step<fast | step is a number, and 'fast' is none
compare p5 --within 30d | --within is the time of a budget
compare p5 --budget 0 | --budget | '0'
compare p5 --budget 1e15 | nobody spends more
compare p5 --budget 5 --within 3 | --within | '3'
compare p5 --budget 5 --within 0d | --within | '0d'
compare p5 --budget 5 --job 3M | --job and --budget are both given
compare p5 --kind gemm --budget 5 | --budget does not apply to records of kind gemm
compare p5 --gpus 0 | --gpus
compare p5 --kind gem | --kind | Did you mean 'gemm'
compare p5 --kind gemm --format answer | --format answer is of runs
compare p5 --kind gemm --batch-size 7 | at batch size 7 for p5 | Run `fp8bench gemm --instance p5 --batch-size 7`
compare p5 --kind gemm --workload vit-micro | no record of `fp8bench gemm` of vit-micro for p5
compare p5 --kind gemm --results-dir empty | no record of `fp8bench gemm` | fp8bench gemm --instance p5
compare p5 --kind numerics --batch-size 64 | --batch-size does not apply to records of kind numerics
compare p4d p5 --results-dir results --results-dir taken | --results-dir | 'taken': it is a file
compare p5 --results-dir nowhere | there is no folder nowhere | --results-dir
compare no-box --results-dir results --results-dir reference | results has records of | and reference has records of p5
run --dry-run --mode te-fp8:curent | recipe of te-fp8 'curent' | Did you mean 'current'
run --dry-run --mode baseline-bf16:delayed | has no recipes, so not 'delayed' | `--mode baseline-bf16`
run --dry-run --workload vit-hug | unknown workload 'vit-hug' | Did you mean 'vit-huge' | fp8bench list workloads
run --dry-run --instance aut | Did you mean 'auto'
compare p4d.24xlarg | Did you mean 'p4d.24xlarge'
run --dry-run --workload timm:convnext_base --classes 1 | --classes | '1'
run --dry-run --sequence-length 1 | --sequence-length | '1'
run --dry-run --workload vit-huge --sequence-length 512 | --sequence-length 512 does not apply to 'vit-huge' | llm-1b
run --dry-run --rounds 3 --precision 1% --max-rounds 2 | --max-rounds 2 is less than --rounds 3
run --dry-run --precision 1% --max-rounds 12 | --max-rounds 12 ends before --precision can be judged
run --dry-run --aa --mode te-fp8 --rounds 2 | --rounds 2 cannot tell how far
run --dry-run --config none.yaml | cannot read none.yaml
sweep --budget 5s | a budget of 5s is too small for one run | Give at least that
sweep --budget 10parsec | invalid value '10parsec' | units are s, min, h
sweep --budget 10 | with a unit of time
sweep --budget 0min | above 0
sweep --budget 2USD | --budget 2USD needs the price of this machine
sweep --budget 0USD --price 1 | above 0
sweep --budget 0.0001USD --price 1 | too small for one run | about 0.01 USD
sweep --batch-size 16,auto | --batch-size 16,auto: auto finds the sizes itself
sweep --batch-size 16,many | --batch-size: invalid value 'many': it must be a whole number, or 'auto'. See
sweep --batch-size , | --batch-size: invalid value ','
sweep --compile auto,often | --compile: invalid value 'often'
sweep --config article.yaml --dry-run | article.yaml names variants, which `fp8bench run` measures
run --dry-run --workload vit-micro --size sequence_length=5 | Use --sequence-length 5
run --rounds 2 --until-decided nowhere | --until-decided nowhere is no folder
run --rounds 2 --until-decided empty | --until-decided empty has no measurement that ran
run --rounds 2 --max-minutes 5 | --max-minutes is given without --until-decided
run --rounds 2 --max-regression 5% | --max-regression is given without --until-decided
run --aa --mode baseline-bf16 --until-decided reference | --aa compares modes with themselves
run --results-dir taken/results | cannot write results to taken/results
predict | no instance was named
predict p5 | --from is missing
run --dry-run --instance p5 --gpus 16 | p5 has 8 GPUs | Give --gpus 8 or less
predict p55 --from h200-1x | unknown instance 'p55'
predict p5 --from p4d | no record of p4d is measured and ok | h200-1x | --from | fp8bench compare p4d
predict p5 --from h200-1x:te-bf16 | no record of h200-1x:te-bf16 is measured and ok
predict p5 --from h200-1x/Graphed | unknown variant 'Graphed' | Did you mean 'graphed'
predict p5 --from h200-1x --gpus 9 | p5 has 8 GPUs, not 9
predict p5 --from h200-1x --gpus 0 | --gpus | '0'
predict p5 --from h200-1x --gpus 10000000000 | the most is 4,096, since each is a process
predict h200-1x --from h200-1x | h200-1x itself was measured on 1 GPU
predict p5 --from h200-1x --region mars | no price is of region 'mars'
predict p5 --from h200-1x --workload vit-huger | unknown workload 'vit-huger'
scaling p5 --workload llm-1b --project 1 | --project | '1'
scaling p5 --workload llm-1b --project 16 | --project | 8 nodes
scaling p5 --workload llm-1b --network-gbps 100 | --network-gbps is about a projection | --project
scaling p5 --workload llm-1b --project 2 --network-gbps -1 | --network-gbps | '-1'
scaling p5 --workload llm-1b --plot a.gif | cannot draw a.gif
scaling p5 --workload llm-2b | unknown workload 'llm-2b'
prices show p55 | unknown instance 'p55' | 'p5'
prices show --provider awz | unknown provider 'awz' | 'aws'
prices show --gpu z80 | no instance has a GPU called 'z80'
prices show p5 --provider gcp | none of p5 is of gcp
prices show --region mars | no price is of region 'mars'
prices update hyperstack-1x-h100 | gpuhunt has no offers of | fp8bench prices set
prices update h200-1x | gpuhunt has no offers of | fp8bench prices set
prices set p55 3 | Did you mean 'p5' | on a machine of your own, `fp8bench run --instance p55
prices set p5 0 | USD | '0'
prices set p5 1e9 | USD | no machine costs more
prices set p5 3 --as-of 2999-01-01 | --as-of 2999-01-01 is in the future
report -o nowhere/report.html | there is no folder nowhere
report -o results | results is a folder
report -o report.docx | report.docx ends in no known format
report -o /dev/stdout | /dev/stdout ends in no known format
report -o report.png | a page cannot be png
report --plot speed -o speed.html | a plot is no page
report --plot nothing | --plot 'nothing'
report --job 0 | --job | '0'
report p4d --plot breakdown | no row has anything to draw as breakdown
report p4d --workload vit-micro | no record of vit-micro for instance 'p4d'
report --results-dir empty | no record to report
check | nothing to compare with | --against
check --plan --export junit=a | --plan checks nothing
check --against nowhere | neither a folder nor a session in results | The latest are: 
check --against empty | empty has no measurement that ran
check --against 202605 | 2 sessions begin with
check --against OLD --session 2030 | --session '2030' is no session
check --against OLD --max-regression 3 | --max-regression | '3'
check --against OLD --export junit | not FORMAT=FILE
check --against OLD --export junitt=a | unknown --export format 'junitt'
check --against OLD --export junit=a --export csv=a | names a twice
check --against OLD --nights | --nights needs the nights of a reference
check --against OLD --results-dir empty | no record to check
check --history --results-dir empty | no record of any night
check --against OLD --under-test tensorflow | --under-test 'tensorflow' is in no record | torch
check --against OLD --under-test GPU | --under-test 'GPU' is in no record
explain | nothing was named
explain a b c | 3 were named
explain te-fp8 --format csv | --format 'csv'
explain te-fp8 --plot steps.gif | cannot draw steps.gif
explain te-fp8 --batch-size 7 | te-fp8 has no record at batch size 7
explain te-fp9 | no file, run or mode is called 'te-fp9' | p5:te-fp8:delayed/eager
explain p4d:te-fp8 | no file, run or mode is called 'p4d:te-fp8'
explain te-fp8/fast | unknown variant 'fast' | . Variants are eager
explain none.json | none.json cannot be read
explain 202605 | run ids begin with '202605' | Give more of it
numerics formats --cast 2,two | --cast 'two' is not a number
numerics formats --cast 1,,2 | --cast has an empty place
numerics formats --cast 1e400 | --cast '1e400' is inf in float64 | Give inf
numerics formats --cast -1e-400 | --cast '-1e-400' is -0.0 in float64
numerics formats --dtype float8_e4m3 | --dtype | 'float8_e4m3fn'
numerics formats --cast 1 --block mxfp6 | --block 'mxfp6'
numerics formats --block mxfp8 | --block casts values, and there are none
collectives --gpus two | --gpus | 'two' | a whole number
gemm --format html | --format 'html'
gemm --plot products.gif | cannot draw products.gif
gemm --workload resnet | unknown workload 'resnet'
gemm --batch-size -2 | --batch-size | '-2'
gemm --record 20260501 --sweep | --record shows what was kept, and --sweep belongs to a measurement
numerics --record 20260501 --mode te-fp8 | and --mode belongs to a measurement
numerics --mode te-fp9 | 'te-fp8'
numerics --layer blok | 'block'
numerics --input outliers | 'outlier'
numerics --width 100 | --width 112
numerics --history-plot jump | .png, .svg or .pdf
list workloads timm:no*such | no model is called like 'timm:no*such'
results import IMPORT --step-time 1e300 | --step-time | '1e300'
results import IMPORT --batch-size 99999999999 | --batch-size | the most is 10,000,000
results import IMPORT --instance p55 | Did you mean 'p5'
results verify --results-dir empty | no records to verify
results verify --results-dir nowhere | there is no folder nowhere
results bundle taken p5 | taken exists
results bundle nowhere/new.zip p5 | there is no folder nowhere
results push results | 'results' is no address | --results-dir
results push ftp://box/results | unknown scheme ftp://
run --workload vit-micro --size num_heads=5 | embed_dim=64 and num_heads=5
sweep --mode baseline-bf16 --workload vit-micro --size num_heads=5 --dry-run | embed_dim=64 and num_heads=5
doctor --quick --json --format csv | both --json and --format csv
switches | fp8bench compare INSTANCE --columns mode,switches
claims | python benchmarks/claims.py --results-dir DIR
prices set my-box 1e-320 | USD | greater than or equal to 0.000001
run --mode baseline-bf16 --price 1e-7 | --price | greater than or equal to 0.000001
results prune 3 | `fp8bench results prune` is gone | RUN_ID.samples.json
results migrate | `fp8bench results migrate` is gone | are read as they are
"""


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(("command", "words"), cases(REFUSED))
def test_what_is_wrong_is_refused_in_a_line_with_a_remedy_and_nothing_is_written(command, words):
    with pytest.raises(UsageError) as refused:
        invoked(*command)
    line = str(refused.value)
    assert [word for word in words if word not in line] == [], line
    assert refused.value.exit_code == 2
    assert refused.value.remedy
    assert "\n" not in line


AS_A_PROGRAM = """
compar p4d | compare
list modes --foo | No such option: --foo
rnu | Did you mean 'run'? See
compare | no instance is named | fp8bench list instances
list modes --jsn | --json
--foo | No such option: --foo
list modes foo | Got unexpected extra argument
run --steps | Option '--steps' requires an argument
foo | No such command 'foo' | . See `fp8bench --help`.
compare p4dd | Did you mean 'p4d' | fp8bench list instances
"""


@pytest.mark.parametrize(("command", "words"), cases(AS_A_PROGRAM))
def test_as_a_program_it_is_one_line_and_exit_code_2(command, words, fp8bench_in):
    outcome = fp8bench_in(*command)
    line = one_line(outcome)

    assert [word for word in words if word not in line] == [], line
    assert outcome.code == 2


def test_a_gpu_instance_on_a_machine_without_one_is_unsupported_here(fp8bench_in, tmp_path):
    outcome = fp8bench_in("run", "--instance", "p5")

    assert "this machine shows no GPU" in one_line(outcome)
    assert outcome.code == 3
    assert list(tmp_path.iterdir()) == []


CONFIG_FAULTS = {
    "steps: several\n": ["line 1", "steps", "'several'"],
    "steps: 5\nmode: te-fp8\n  warmup: 1\n": ["line 3 is not YAML"],
    "seed: 1\nsteps: 12:30\n": ["line 2", "12:30 is no plain number"],
    "seed: 1\nsteps: 010\n": ["line 2", "010 is no plain number"],
    "seed: 1\nsteps: true\n": ["line 2", "steps", "it must be a number"],
    "steps: 5\nseed: 1\nsteps: 7\n": ["line 3: 'steps' is given twice, the first time on line 1"],
    f"mode: {'[' * 100_000}": ["nested"],
}


@pytest.mark.parametrize(("text", "words"), CONFIG_FAULTS.items(), ids=lambda value: str(value)[:30])
def test_a_fault_of_a_config_file_is_told_by_file_and_line(text, words, command, tmp_path):
    """What else is wrong with one: tests/schema/test_files.py and tests/config."""
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(UsageError) as refused:
        command("run", "--dry-run", "--config", "mine.yaml")
    line = str(refused.value)
    assert [word for word in ["mine.yaml", *words] if word not in line] == [], line
    assert "\n" not in line


def test_a_fault_of_a_variable_is_told_by_its_name_and_one_that_is_not_taken_in_a_warning(fp8bench_in):
    for variable, value, words in (
        ("FP8BENCH_BATCHSIZE", "32", "'FP8BENCH_BATCHSIZE'. Did you mean 'FP8BENCH_BATCH_SIZE'?"),
        ("FP8BENCH_STEPS", "many", "FP8BENCH_STEPS: invalid value 'many'"),
    ):
        outcome = fp8bench_in("run", "--dry-run", **{variable: value})
        assert words in one_line(outcome)
        assert outcome.code == 2
    outcome = fp8bench_in("compare", "p4d", FP8BENCH_STEPS="3", FP8BENCH_SEED="1", FP8BENCH_BATCH_SIZE="")
    warning = "fp8bench: warning: FP8BENCH_SEED, FP8BENCH_STEPS do not apply to this call of `fp8bench compare`\n"
    assert (outcome.code, outcome.stderr) == (0, warning)
    outcome = fp8bench_in("list", "modes", FP8BENCH_STEP="3")
    assert outcome.code == 0
    assert "warning: unknown variable 'FP8BENCH_STEP'. Did you mean 'FP8BENCH_STEPS'?" in outcome.stderr


def test_debug_shows_the_traceback(fp8bench_in):
    outcome = fp8bench_in("--debug", "compare", "p4dd")

    assert outcome.code == fp8bench_in("compare", "p4dd").code == 2
    assert "Traceback" in outcome.stderr
    assert "UsageError" in outcome.stderr
