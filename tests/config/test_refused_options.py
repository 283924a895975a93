"""What is no valid option is refused in one line, with its origin, its value and a remedy."""

from typing import Any

import pytest

from fp8bench.config.request import OPTIONS
from fp8bench.config.sources import resolve
from fp8bench.schema.errors import UsageError

FILE = "nightly.yaml"


@pytest.mark.parametrize(
    ("typed", "meant"), [("FP8BENCH_BATCHSIZE", "FP8BENCH_BATCH_SIZE"), ("FP8BENCH_STEP", "FP8BENCH_STEPS")]
)
def test_a_mistyped_variable_is_refused_with_the_nearest_name(typed: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"unknown variable '{typed}'") as caught:
        resolve({}, {typed: "32"}, {}, None)

    assert f"Did you mean {meant!r}?" in caught.value.remedy


@pytest.mark.parametrize("text", ["%", "one%", "0%", "100%", "-1%", "1", "nan%", "inf%", "1 percent", ""])
def test_what_is_no_share_between_nothing_and_all_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve({"precision": text}, {}, {}, None)

    assert caught.value.what.startswith(f"--precision: invalid value {text!r}: ")


@pytest.mark.parametrize(("flags", "variables"), [({"price": float("inf")}, {}), ({}, {"FP8BENCH_PRICE": "inf"})])
def test_an_infinite_price_is_refused(flags: dict[str, Any], variables: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="price"):
        resolve(flags, variables, {}, None)


WRONG_VALUES = [
    ("batch_size", 0),
    ("gpus", -1),
    ("steps", 0),
    ("min_time_s", -1),
    ("min_time_s", "inf"),
    ("min_time_s", "nan"),
    ("min_time_s", 86401),
    ("timeout_s", 0),
    ("timeout_s", "inf"),
    ("timeout_s", 86401),
    ("warmup", -1),
    ("workers", -1),
    ("seed", -1),
    ("price", 0),
    ("rounds", 0),
    ("max_rounds", 0),
    ("precision", "1.5"),
    ("session", "../elsewhere"),
    ("session", ".hidden"),
    ("aa", "perhaps"),
    ("compile", "sometimes"),
    ("data", "disk"),
    ("te_attention", "flash"),
    ("parallel", "zero"),
    ("tensor_parallel", 0),
    ("grad_accumulation", 0),
    ("activation_checkpointing", "most"),
    ("batch_size", "many"),
]


@pytest.mark.parametrize(("field", "value"), WRONG_VALUES)
def test_a_wrong_flag_is_named_as_it_was_typed_with_its_value(field: str, value: object) -> None:
    with pytest.raises(UsageError) as caught:
        resolve({field: value}, {}, {}, None)

    flag = {"min_time_s": "--min-time", "timeout_s": "--timeout"}.get(field, f"--{field.replace('_', '-')}")
    assert caught.value.what.startswith(f"{flag}: invalid value {value!r}: ")


@pytest.mark.parametrize(("field", "value"), WRONG_VALUES)
def test_a_wrong_variable_is_named(field: str, value: object) -> None:
    variable = f"FP8BENCH_{field.upper()}"

    with pytest.raises(UsageError) as caught:
        resolve({}, {variable: str(value)}, {}, None)

    assert variable in caught.value.what
    assert repr(str(value)) in caught.value.what


@pytest.mark.parametrize(("field", "value"), WRONG_VALUES)
def test_a_wrong_value_of_the_file_is_named_with_the_file_and_field(field: str, value: object) -> None:
    with pytest.raises(UsageError) as caught:
        resolve({}, {}, {field: value}, FILE)

    assert caught.value.what.startswith(f"{field} from {FILE}: invalid value {value!r}: ")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("batchsize", "batch_size"), ("modes", "mode"), ("seeed", "seed"), ("result_dir", "results_dir")],
)
def test_an_unknown_key_of_the_file_is_refused_with_the_nearest_name(typed: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve({}, {}, {"steps": 10, typed: 1}, FILE)

    assert FILE in caught.value.what
    assert repr(typed) in caught.value.what
    assert f"Did you mean {meant!r}?" in caught.value.remedy


def test_with_its_text_a_fault_of_the_file_is_told_by_its_line() -> None:
    text = "seed: 1\nbatch-size: 0\n"

    with pytest.raises(UsageError) as caught:
        resolve({}, {}, {"seed": 1, "batch-size": 0}, FILE, text)

    assert caught.value.what.startswith(f"batch_size from {FILE} line 2: invalid value 0: ")


@pytest.mark.parametrize("typed", ["batchsize", "batch-sizes"])
def test_so_is_a_key_that_it_should_not_have(typed: str) -> None:
    with pytest.raises(UsageError, match=f"{FILE} line 3:"):
        resolve({}, {}, {"seed": 1, "steps": 2, typed: 3}, FILE, f"seed: 1\nsteps: 2\n{typed}: 3\n")


def test_an_unknown_key_like_no_other_is_refused_without_a_guess() -> None:
    with pytest.raises(UsageError) as caught:
        resolve({}, {}, {"qqqqqq": 1}, FILE)

    assert "'qqqqqq'" in caught.value.what
    assert "Did you mean" not in caught.value.remedy


@pytest.mark.parametrize("field", [name for name, option in OPTIONS.items() if option.limit])
def test_a_number_beyond_all_sense_is_refused_with_the_most_and_why(field: str) -> None:
    bound = OPTIONS[field].limit

    assert getattr(resolve({field: str(bound.most)}, {}, {}, None).request, field) == bound.most
    for text in (str(bound.most + 1), "9" * 20):
        with pytest.raises(UsageError) as caught:
            resolve({field: text}, {}, {}, None)
        assert caught.value.what == (
            f"--{field.removesuffix('_s').replace('_', '-')}: invalid value {text!r}: "
            f"the most is {bound.most:,}, since {bound.why}"
        )


def test_an_invalid_value_of_any_length_makes_one_line() -> None:
    with pytest.raises(UsageError) as caught:
        resolve({"steps": "9" * 5000}, {}, {}, None)

    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("value", ["", " ", ","])
@pytest.mark.parametrize("field", ["workload", "price", "session", "mode", "results_dir"])
def test_an_empty_value_of_the_file_is_no_default(field: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"{field} from {FILE} line 2: invalid value '{value}': it is empty"):
        resolve({}, {}, {"seed": 1, field: value}, FILE, f"seed: 1\n{field}: '{value}'\n")


def test_a_field_that_is_spelt_in_both_ways_is_given_twice() -> None:
    with pytest.raises(UsageError, match=f"{FILE} gives 'batch_size' twice"):
        resolve({}, {}, {"batch-size": 8, "batch_size": 16}, FILE)


def test_a_price_is_of_the_machine_or_of_a_gpu_and_not_both() -> None:
    with pytest.raises(UsageError, match=r"both a price \(flag\) and a price per GPU \(FP8BENCH_PRICE_PER_GPU\)"):
        resolve({"price": "3"}, {"FP8BENCH_PRICE_PER_GPU": "2"}, {}, None)


def test_a_session_that_is_no_name_is_told_in_plain_words() -> None:
    with pytest.raises(UsageError, match=r"letters, digits, '.', '_' and '-' are allowed"):
        resolve({"session": "../elsewhere"}, {}, {}, None)


def test_the_prefix_of_a_variable_makes_no_other_nearer() -> None:
    with pytest.raises(UsageError) as caught:
        resolve({}, {"FP8BENCH_FOO": "1"}, {}, None)

    assert "Did you mean" not in caught.value.remedy


@pytest.mark.parametrize("name", ["two words", "-a", "x" * 65, "box/7"])
def test_a_machines_name_is_letters_digits_and_few_signs(name: str) -> None:
    with pytest.raises(UsageError, match="--name"):
        resolve({"name": name}, {}, {}, None)
