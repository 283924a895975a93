"""What `fp8bench numerics` prepares, and the record that comes of it."""

import pytest

from fp8bench.config.options import read
from fp8bench.kinds.numerics import KIND
from fp8bench.kinds.numerics import measure as measuring
from fp8bench.kinds.numerics.measure import NumericsRecord, NumericsRequest, measure, prepare
from fp8bench.machine.gpus import Machine
from fp8bench.machine.identity import this_machines_identity
from fp8bench.schema.errors import UsageError
from fp8bench.schema.numerics import INPUTS, LAYERS, TENSORS, LayerError
from fp8bench.schema.record import METHOD_VERSION

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


def prepared(tmp_path, *modes, **words):
    return prepare(read(NumericsRequest, {"results_dir": tmp_path, "modes": modes, **words}, "numerics"), NO_GPU)


def error(status="ok", mode="baseline-bf16", **changes):
    reason = None if status == "ok" else "it is so"
    return LayerError(mode=mode, status=status, reason=reason, remedy=None, **changes)


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    words = {"layers": ("linear",), "inputs": ("normal",), "width": "32", "seed": "7", "name": "box-7"}
    return measure(prepared(folder, "baseline-bf16", "te-fp8", **words), lambda _stage: None)


class TestPrepare:
    def test_everything_by_default_the_yardsticks_first(self, tmp_path):
        config = prepared(tmp_path).config
        torchao = [f"torchao-float8:{recipe}" for recipe in ("tensorwise", "rowwise", "rowwise_with_gw_hp")]
        te = [f"te-fp8:{recipe}" for recipe in ("delayed", "current", "block", "mxfp8")]
        assert config.modes == ("baseline-fp32", "baseline-bf16", *torchao, *te)
        assert (config.layers, config.inputs) == (LAYERS, INPUTS)
        assert (config.device, config.width, config.tokens, config.seed) == ("cpu", 64, 64, 0)

    def test_a_gpu_has_its_own_sizes(self, tmp_path, monkeypatch):
        monkeypatch.setattr(measuring, "this_machine", lambda _environ: Machine(("NVIDIA H200",), None, 8))
        found = prepared(tmp_path)
        assert (found.config.device, found.config.width, found.config.tokens) == ("cuda", 1280, 2048)
        assert found.instance.key == "custom-1x-nvidia-h200"

    @pytest.mark.parametrize(
        ("modes", "words", "said"),
        [
            (("baseline-bf16:delayed",), {}, "has no recipes"),
            ((), {"width": "8"}, "--width: invalid value '8': .* greater than or equal to 16"),
            ((), {"width": "1600000"}, "--width: .* the most is 65,536, since"),
            ((), {"width": "64.5"}, "--width: invalid value '64.5': .* integer"),
            ((), {"layers": ("block",), "inputs": ("normal-exact",)}, "inputs of the linear layer alone"),
        ],
        ids=str,
    )
    def test_a_wrong_word_is_wrong_usage(self, tmp_path, modes, words, said):
        with pytest.raises(UsageError, match=said):
            prepared(tmp_path, *modes, **words)


@pytest.mark.slow
class TestRecord:
    def test_says_what_was_done_where_and_when(self, record):
        assert (record.kind, record.status, record.source, record.instance) == ("numerics", "ok", "measured", "cpu")
        assert record.run_id.startswith(f"{record.created_utc:%Y%m%dT%H%M%SZ}-numerics-")
        same = {"width": 32, "tokens": 64, "seed": 7, "method_version": METHOD_VERSION}
        assert record.fingerprint == {"kind": "numerics", **same}
        assert record.environment.versions["torchao"]
        assert (record.machine, record.machine.label) == (this_machines_identity("box-7"), "box-7")
        rows = [("te-fp8:delayed", "unsupported", None), *(("baseline-bf16", "ok", tensor) for tensor in TENSORS)]
        assert [(row.mode, row.status, row.tensor) for row in record.rows] == rows
        assert len(record.history.traces) == 4

    @pytest.mark.parametrize(
        ("statuses", "code", "named"), [(("ok", "unsupported"), 0, 3), (("ok", "failed", "invalid"), 5, 5)]
    )
    def test_the_exit_code_is_that_of_its_rows_statuses_and_of_the_modes_named(self, record, statuses, code, named):
        """Of which statuses it is which, is in tests/launch/test_session.py."""
        found = record.model_copy(update={"rows": tuple(map(error, statuses))})
        assert KIND.exit_code(found, NumericsRequest()) == code
        assert KIND.exit_code(found, NumericsRequest(modes=("te-fp8",))) == named

    def test_a_status_that_its_rows_belie_is_refused(self, record):
        whole = {**record.model_dump(), "rows": [error("unsupported").model_dump()]}
        with pytest.raises(ValueError, match="ok where one of its rows is"):
            NumericsRecord.model_validate(whole)
