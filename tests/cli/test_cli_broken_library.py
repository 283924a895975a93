"""A torch that cannot be imported is one line and exit code 3, whichever command needs it."""

import pytest
from cli.calling import call_python, one_line

DAMAGED = {
    "import": r"raise ImportError('libtorch.so: \x1b[31mundefined symbol')",
    "shared library": "raise OSError('libcudart.so.12: cannot open shared object file')",
}


def called(folder, *arguments, damage="import"):
    library = folder / "damaged"
    library.mkdir()
    (library / "torch.py").write_text(DAMAGED[damage])
    return call_python(folder, "-m", "fp8bench", *arguments, PYTHONPATH=str(library))


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("gemm", "--shape", "32,32,32"),
        ("numerics",),
        ("list", "workloads", "vit-micro"),
        ("list", "workloads", "timm:vit_tiny_patch16_224"),
        ("converge",),
    ],
    ids=" ".join,
)
def test_a_torch_that_does_not_import_is_one_line_with_its_reason(arguments, tmp_path):
    outcome = called(tmp_path, *arguments)

    said = outcome.stderr.splitlines()[-1]
    assert r"torch cannot be imported: ImportError: libtorch.so: \x1b[31mundefined symbol. Install it" in said
    assert "Traceback" not in outcome.stderr
    assert outcome.stdout == ""
    assert outcome.code == 3


@pytest.mark.slow
def test_a_shared_library_that_does_not_load_is_one_line_too(tmp_path):
    outcome = called(tmp_path, "numerics", damage="shared library")

    assert "torch cannot be imported: OSError: libcudart.so.12: cannot open shared object" in one_line(outcome)
    assert outcome.code == 3


@pytest.mark.slow
def test_debug_shows_where_the_import_fails(tmp_path):
    outcome = called(tmp_path, "--debug", "numerics")

    assert "Traceback" in outcome.stderr
    assert "libtorch.so" in outcome.stderr
