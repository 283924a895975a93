"""The error of a library that cannot be imported, told apart from any other error."""

import importlib
import sys

import pytest

from fp8bench.schema.broken_library import refusal_of

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


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("ImportError('libcudart.so.12: no such file')", "ImportError: libcudart.so.12: no such file"),
        ("OSError('libgomp.so.1: cannot open')", "OSError: libgomp.so.1: cannot open"),
        ("RuntimeError('it is damaged.')", "RuntimeError: it is damaged"),
        (r"ImportError('\x1b[31mred\x1b[0m\nand more')", r"ImportError: \x1b[31mred\x1b[0m and more"),
    ],
    ids=["import", "shared library", "anything", "escapes"],
)
def test_a_library_that_fails_to_import_is_named_with_its_error_in_one_line(library, raised, said):
    refusal = refusal_of(library(f"raise {raised}"))

    assert refusal is not None
    assert refusal.what == f"{NAME} cannot be imported: {said}"
    assert refusal.exit_code == 3


def test_the_library_is_the_one_that_was_asked_for_and_not_one_that_it_needs(library):
    assert refusal_of(library("import json.no_such_module")).what.startswith(f"{NAME} cannot be imported")


def test_a_missing_library_is_named():
    with pytest.raises(ImportError) as caught:
        importlib.import_module("no_such_library.part")

    assert refusal_of(caught.value).what.startswith("no_such_library cannot be imported: ModuleNotFoundError")


def test_a_module_of_the_package_itself_is_no_library():
    with pytest.raises(ImportError) as caught:
        importlib.import_module("fp8bench.no_such_module")

    assert refusal_of(caught.value.with_traceback(None)) is None


def test_an_error_in_a_call_of_an_imported_library_is_not_one_of_its_import(library):
    error = library("def fail():\n    raise OSError('a disk failed')", lambda module: module.fail())

    assert refusal_of(error) is None


@pytest.mark.parametrize("code", ["from itertools import no_such_name", "import json.no_such_part", "1 / 0"])
def test_what_pythons_own_library_lacks_is_a_mistake_of_ours(code):
    with pytest.raises((ImportError, ZeroDivisionError)) as caught:
        exec(code, {})

    assert refusal_of(caught.value) is None
