"""Errors say what and what to do, carry the program's exit code, and survive the way back from a worker process."""

import importlib
import pickle
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8bench.schema.errors import (
    MOST_NAMES,
    Fp8benchError,
    Interrupted,
    MeasurementInvalid,
    ModeUnavailable,
    RunFailed,
    UsageError,
    did_you_mean,
    inert,
    nearest,
    refusal_of,
)

EXIT_CODES = {UsageError: 2, ModeUnavailable: 3, MeasurementInvalid: 4, RunFailed: 5, Interrupted: 130}


def test_each_kind_has_its_promised_exit_code_and_crosses_a_process_border_with_both_words():
    for kind, code in {Fp8benchError: 5, **EXIT_CODES}.items():
        back = pickle.loads(pickle.dumps(kind("no fp8 unit", "Use a Hopper GPU")))
        assert (type(back), back.exit_code, issubclass(kind, Fp8benchError)) == (kind, code, True)
        assert (back.what, back.remedy) == ("no fp8 unit", "Use a Hopper GPU")
        assert str(back) == "no fp8 unit. Use a Hopper GPU."


INSTANCES = ["p4d", "p4de", "p5", "p5e", "p6-b200", "lambda-1x-h100", "lambda-8x-h100"]
MODES = ["baseline-bf16", "baseline-fp32", "te-bf16", "te-fp8", "torchao-float8"]


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("p4", INSTANCES, ["p4d"]),
        ("P5", INSTANCES, ["p5"]),
        ("te-pf8", MODES, ["te-fp8"]),
        ("bf16", MODES, ["baseline-bf16", "te-bf16"]),
        ("torchao-fp8", MODES, ["torchao-float8"]),
        ("h100", INSTANCES, ["lambda-1x-h100", "lambda-8x-h100"]),
        ("zzzzzz", MODES, []),
        ("x", INSTANCES, []),
        ("anything", [], []),
    ],
)
def test_the_nearest_names(name: str, known: list[str], meant: list[str]) -> None:
    assert nearest(name, known) == meant


def test_of_a_family_the_names_come_first_and_no_more_than_a_few_and_the_question_names_every_one():
    assert nearest("h100", INSTANCES, ["p5"]) == ["p5", "lambda-1x-h100", "lambda-8x-h100"]
    assert len(nearest("h100", [f"lambda-h100-{number}" for number in range(99)])) == MOST_NAMES
    # But a slip goes before a family.
    assert nearest("p5x", INSTANCES, ["p6-b200"]) == ["p5"]
    assert did_you_mean([]) == ""
    assert did_you_mean(["a"]) == "Did you mean 'a'? "
    assert did_you_mean(["a", "b", "c"]) == "Did you mean 'a', 'b' or 'c'? "


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("Größe 2, 日本", "Größe 2, 日本"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x9b2J", "\\x9b2J"),
        ("fast\u202ewols", "fast\\u202ewols"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("lone \ud800", "lone \\ud800"),
        ("two\r\nlines\tand\x0bmore\u2028", "two lines and more "),
    ],
)
def test_what_a_terminal_would_obey_is_written_out_and_a_line_stays_one(text, printed):
    assert inert(text) == printed


@given(st.text(st.characters()))
def test_nothing_that_controls_is_left_and_twice_is_as_once(text):
    once = inert(text)

    assert not {"Cc", "Cs", "Zl", "Zp"} & set(map(unicodedata.category, once))
    assert not set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069") & set(once)
    assert inert(once) == once
    once.encode()


NAME = "library_of_this_test"


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Write a library, import it, and return the error that comes of it."""
    monkeypatch.syspath_prepend(tmp_path)

    def raised_by(body, then=lambda module: None):
        (tmp_path / f"{NAME}.py").write_text(body)
        importlib.invalidate_caches()
        sys.modules.pop(NAME, None)
        with pytest.raises(Exception) as caught:  # noqa: PT011
            then(importlib.import_module(NAME))
        # As if this test were the program, whose frames are the outermost.
        return caught.value.with_traceback(caught.value.__traceback__.tb_next)

    return raised_by


def test_a_library_that_fails_to_import_is_named_with_its_error_in_one_line_and_only_its_import_counts(library):
    for raised, said in (
        ("RuntimeError('it is damaged.')", "RuntimeError: it is damaged"),
        (r"ImportError('\x1b[31mred\x1b[0m\nand more')", r"ImportError: \x1b[31mred\x1b[0m and more"),
    ):
        refusal = refusal_of(library(f"raise {raised}"))
        assert (refusal.what, refusal.exit_code) == (f"{NAME} cannot be imported: {said}", 3)
    assert refusal_of(library("import json.no_such_module")).what.startswith(f"{NAME} cannot be imported")
    error = library("def fail():\n    raise OSError('a disk failed')", lambda module: module.fail())
    assert refusal_of(error) is None
    with pytest.raises(ImportError) as caught:
        importlib.import_module("no_such_library.part")
    assert refusal_of(caught.value).what.startswith("no_such_library cannot be imported: ModuleNotFoundError")
    with pytest.raises(ImportError) as caught:
        importlib.import_module("fp8bench.no_such_module")
    assert refusal_of(caught.value.with_traceback(None)) is None
    # What Python's own library lacks is a mistake of ours.
    for code in ("from itertools import no_such_name", "import json.no_such_part", "1 / 0"):
        with pytest.raises((ImportError, ZeroDivisionError)) as caught:
            exec(code, {})
        assert refusal_of(caught.value) is None
