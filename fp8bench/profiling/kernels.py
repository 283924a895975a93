"""What a device's time was for: the pieces of it in a Chrome trace of torch.profiler, the purpose of each by its name,
and seconds per step by purpose. A trace is a JSON document, zipped or not, whose `traceEvents` list what ran when. The
worker adds the key `fp8bench`.

A kernel that casts to fp8 and does other work too is a `cast` with all its time; a norm or an activation that merely
writes fp8 instead of bf16 is `elementwise`, because bf16 pays for it too. So compare the two together (see `causes`).
Sources: cuBLAS names the types of its Hopper and Blackwell GEMMs by letters (nvjet_sm90_qrtst: A e4m3, B e5m2, C
bf16, computed in float32; tst: bf16 throughout; hsh: half), its older ones in words (sm89_xmma_gemm_e4m3bf16_...);
torch's copies are in aten/src/ATen/native/cuda/Copy.cu; triton kernels list the operators that they were fused from.
"""

import gzip
import io
import json
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fp8bench.schema.errors import UsageError, writing
from fp8bench.schema.files import LARGEST_BYTES, bytes_of, write_atomically
from fp8bench.schema.rank import GEMMS, Category, KernelTime, Profile

# Keys of a trace that name the machine, or a folder on it; torch >= 2.13 writes the first.
PRIVATE_KEYS = ("host_name", "hostname", "traceName")
_MAKE_ANOTHER = "Make one with `fp8bench run --mode MODE --trace FILE`"

Event = Mapping[str, Any]
# Complete events (ph X) by their `cat`.
ByKind = Mapping[str, Sequence[Event]]


@dataclass(slots=True)
class Span:
    """A piece of work, in seconds from the first piece. continued: a later piece of a counted operator."""

    name: str
    start_s: float
    end_s: float
    in_optimizer: bool = False
    continued: bool = False


class Trace(NamedTuple):
    device: Literal["cuda", "cpu"]
    steps: int
    spans: tuple[Span, ...]


def read_trace(path: Path) -> Trace:
    """Read the trace in a `.json` or `.json.gz`. Raises UsageError for a file that is not one of fp8bench's traces."""
    document = _read_document(path)
    try:
        device, steps = document["fp8bench"]["device"], document["fp8bench"]["steps"]
        if device not in ("cuda", "cpu") or not isinstance(steps, int) or steps < 1:
            raise ValueError(f"{steps!r} steps on {device!r}")
        events: dict[str, list[Event]] = defaultdict(list)
        for event in document["traceEvents"]:
            if event.get("ph") == "X":
                events[event.get("cat", "")].append(event)
        spans = gpu_spans(events) if device == "cuda" else cpu_spans(events)
        if not spans:
            raise ValueError(f"no {'kernel of a GPU' if device == 'cuda' else 'operator'} was traced")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{path} is no trace as fp8bench makes it: {error!r}", _MAKE_ANOTHER) from error
    return Trace(device, steps, spans)


def _read_document(path: Path) -> dict[str, Any]:
    try:
        data = bytes_of(path)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "Check the name and its permissions") from error
    document: Any = None
    try:
        if data.startswith(b"\x1f\x8b"):
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
                data = file.read(LARGEST_BYTES + 1)
        wrong = f"unzips to more than {LARGEST_BYTES >> 20} MiB"
        if len(data) <= LARGEST_BYTES:
            wrong, document = "is not a Chrome trace: it has no list of traceEvents", json.loads(data)
    except (OSError, EOFError, zlib.error) as error:
        wrong = f"is not a whole gzip file: {error}"
    except ValueError as error:
        wrong = f"is not JSON: {error}"
    except RecursionError:
        wrong = "is nested too deeply"
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise UsageError(f"{path} {wrong}", _MAKE_ANOTHER)
    return document


def keep_trace(source: Path, target: Path) -> None:
    """Write the trace at `source`, without the keys that name its machine, to `target`, zipped for .gz: always the same
    bytes. Raises UsageError if `source` is not a trace, RunFailed if `target` cannot be written.
    """
    document = {key: value for key, value in _read_document(source).items() if key not in PRIVATE_KEYS}
    data = json.dumps(document, separators=(",", ":")).encode()
    if target.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    with writing(target, "Name another file with --trace"):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, data, replace=True)


def gpu_spans(events: ByKind) -> tuple[Span, ...]:
    """Return kernels, copies and fills by start. The optimizer's are those that were launched in its annotation; of a
    replayed graph all have the id of one launch. A missing field raises KeyError, TypeError or ValueError, as below.
    """
    work = [event for kind in ("kernel", "gpu_memcpy", "gpu_memset") for event in events[kind]]
    steps = [(event["ts"], event["ts"] + event["dur"]) for event in _annotated(events, "Optimizer.")]
    launches = (event for kind in ("cuda_runtime", "cuda_driver") for event in events[kind])
    inside = {
        event["args"]["correlation"]
        for event in launches
        if "correlation" in event.get("args", ()) and any(start <= event["ts"] <= end for start, end in steps)
    }
    spans = zip(_spans(work), work, strict=True)
    found = [replace(span, in_optimizer=event["args"]["correlation"] in inside) for span, event in spans]
    return tuple(sorted(found, key=lambda span: span.start_s))


def cpu_spans(events: ByKind) -> tuple[Span, ...]:
    """Return the time of operators without those that they call, and gloo's on its own threads, by start."""
    operators, of_gloo, steps = events["cpu_op"], _annotated(events, "gloo:"), _annotated(events, "Optimizer.")
    spans = _spans([*operators, *of_gloo, *steps])
    threads: dict[int, list[Span]] = defaultdict(list)
    for event, span in zip(operators, spans, strict=False):
        threads[event["tid"]].append(span)
    pieces = [piece for thread in threads.values() for piece in _own_time(thread)]
    pieces += spans[len(operators) : len(operators) + len(of_gloo)]
    optimizer = spans[len(operators) + len(of_gloo) :]
    for piece in pieces:
        piece.in_optimizer = any(step.start_s <= piece.start_s <= step.end_s for step in optimizer)
    return tuple(sorted(pieces, key=lambda piece: piece.start_s))


def _spans(events: Sequence[Event]) -> list[Span]:
    first = min((event["ts"] for event in events), default=0)
    starts = ((event, (event["ts"] - first) * 1e-6) for event in events)
    return [Span(event["name"], start_s, start_s + event["dur"] * 1e-6) for event, start_s in starts]


def _annotated(events: ByKind, beginning: str) -> list[Event]:
    return [event for event in events["user_annotation"] if event["name"].startswith(beginning)]


def _own_time(thread: Iterable[Span]) -> Iterator[Span]:
    """Yield the time of each operator of one thread without the operators inside it. One that starts with another
    inside it has a first piece of length zero, so that it is counted.
    """
    open_ones: list[Span] = []

    def close(until_s: float) -> Iterator[Span]:
        while open_ones and open_ones[-1].end_s <= until_s:
            done = open_ones.pop()
            if done.end_s > done.start_s or not done.continued:
                yield done
            if open_ones:
                open_ones[-1].start_s = done.end_s

    for span in sorted(thread, key=lambda span: (span.start_s, -span.end_s)):
        yield from close(span.start_s)
        if open_ones:
            outer = open_ones[-1]
            if span.start_s > outer.start_s or not outer.continued:
                yield replace(outer, end_s=span.start_s)
            outer.continued = True
            # Rounding may let the inner operator end slightly after the outer one.
            span.end_s = min(span.end_s, outer.end_s)
        open_ones.append(span)
    yield from close(float("inf"))


# How many kernels a profile names. For ViT-Huge, each of the others is below a thousandth of a step.
LONGEST = 40

_VIEWS = (
    "_unsafe_view|view|t|transpose|permute|clone|expand|slice|select|squeeze|unsqueeze|stack|cat|as_strided"
    "|split|split_with_sizes|unbind|_scaled_dot_product_[a-z]+_attention|_scaled_dot_product_[a-z]+_attention_backward"
)
_TRITON = "^triton_(?:poi|red|per)_fused"
_PRODUCT = (
    "nvjet_|gemm|gemv|xmma|cutlass.*(?:tensorop|simt|conv|ReduceSplitK|device_kernel)|splitKreduce|convolve|winograd"
    "|[wd]grad|dot_kernel"
)
_FP8 = r"e4m3|e5m2|fp8|float8|f8f8|nvjet_(?:sm\d+[a-z]?_)?[qr]"
_16_BIT = r"bf16|bfloat|[fp]16|half|16816|161616|(?<![a-z])h\d*gemm|nvjet_(?:sm\d+[a-z]?_)?[th]"
_32_BIT = r"float|f32|sgemm|s1688|simt|nvjet_(?:sm\d+[a-z]?_)?s"

KERNELS: tuple[tuple[str, Category], ...] = (
    # Communication first: its names contain the type that is added up (AllReduce_Sum_bf16), which would mislead below.
    (r"^nccl|ncclDevKernel|ncclKernel", "nccl"),
    # Triton: a kernel's name lists every operator around it, including GEMMs and attention, which it does not compute
    # itself unless it is made from a template (tem).
    (r"^triton_tem_.*flex_attention", "attention"),
    (r"^triton_tem_.*_scaled_(?:grouped_)?mm", "gemm_fp8"),
    (r"^triton_tem_.*(?:mm|convolution)", "gemm_bf16"),
    # foreach: the loops of a compiled optimizer over all its tensors.
    (r"^triton_for_fused", "optimizer"),
    # torchao: scale, clamp to fp8's range, cast; and the largest absolute value, from which the scale is computed.
    (rf"{_TRITON}_.*(?:_scaled_mm|clamp.*reciprocal|reciprocal.*clamp|abs_(?:.*_)?a?max)", "cast"),
    # Only a change of type, with any views: autocast's copies of the weights.
    (rf"{_TRITON}(?=.*__to_copy)(?:_(?:_to_copy|{_VIEWS}))+_\d+$", "cast"),
    (rf"{_TRITON}(?:_(?:{_VIEWS}))+_\d+$", "copy"),
    (r"^triton_", "elementwise"),
    # Transformer Engine: casts with and without transpose, gelu's backward or bias sums (CTDBias...) fused into them,
    # transposes of fp8 values, largest values and scales, block scales and their layout.
    (r"cast_transpose|CTDBias|(?<![a-z])transpose_(?:optimized|general)_kernel", "cast"),
    (r"cast_(?:fp8|mxfp8|nvfp4|gated)|quantize_|dequantize|block_scaled_|swizzle_(?:row|col)", "cast"),
    (r"amax|compute_scale|scale_update|update_scale|ComputeScale", "cast"),
    (r"transformer_engine::unary_kernel<.*identity", "cast"),
    # torch: a functor named after the type it writes, or a copy that loads with a cast. A copy that is `nocast`, or
    # vectorized, keeps its type and changes only the layout: it is with the copies below.
    (r"float\w*_copy_kernel", "cast"),
    (r"unrolled_elementwise_kernel<[^<]*direct_copy_kernel(?!.*LoadWithoutCast)", "cast"),
    (r"gpu_kernel_impl<[^<]*direct_copy_kernel", "cast"),
    # Attention before GEMMs, because its kernels are also named cutlass and wgmma. cuDNN's backward is three kernels;
    # compute_dot_do_o and convert_dq are the small ones.
    (r"(?i)sdpa|flash|fmha|attention|attn|dot_do_o|convert_dq|efficient", "attention"),
    # GEMMs by the type of their operands. A convolution counts as one: the patches of a ViT are embedded by one.
    (rf"^(?=.*(?:{_PRODUCT})).*(?:{_FP8})", "gemm_fp8"),
    (rf"^(?=.*(?:{_PRODUCT})).*(?:{_16_BIT})", "gemm_bf16"),
    (rf"^(?=.*(?:{_PRODUCT})).*(?:{_32_BIT})", "gemm_fp32"),
    # The optimizer, if no annotation identifies it: torch's and Transformer Engine's loops over lists of tensors.
    (r"multi_tensor|FusedAdam|fused_adam|fused_sgd", "optimizer"),
    # Copies: memory to memory, fills, concatenation, and changes of layout for a convolution.
    (r"^(?i:memcpy|memset)|FillFunctor|CatArrayBatchedCopy|direct_copy_kernel|copy_device_to_device", "copy"),
    (r"(?i)nchwToNhwc|nhwcToNchw|nhwcAddPadding|batchTranspose|nhwc2nchw|nchw2nhwc", "copy"),
    # Norms, activations, sums of bias gradients, softmax, the loss, and all remaining kernels of torch: each reads its
    # tensors once and computes little.
    (r"normalization|norm_|_norm|layer_norm|GammaBeta|softmax|dbias|Bgrad|gelu|activation|unary_kernel", "elementwise"),
    (r"at::native|elementwise|reduce_kernel|vectorized|transformer_engine::|dropout", "elementwise"),
)
"""Pattern (searched for anywhere in the name) and category; the first match decides."""

OPERATORS: tuple[tuple[str, Category], ...] = (
    (r"^(?:c10d|gloo|nccl|mpi)::?|^gloo:|^_c10d_functional", "nccl"),
    (r"scaled_dot_product|_flash_attention|_efficient_attention|flex_attention", "attention"),
    (r"::_scaled_(?:grouped_)?mm", "gemm_fp8"),
    (r"::(?:mm|addmm|bmm|baddbmm|addbmm|mv|addmv|dot|matmul|linear|_?linear_pointwise)(?:$|\.|_)", "gemm_bf16"),
    (r"convolution|conv[123]d|mkldnn_linear|mkldnn::", "gemm_bf16"),
    # Under autocast, a copy between types; a copy that keeps its type has the same name.
    (r"::(?:_to_copy|to|copy_|_copy_from|type_as)$|quantize|::(?:amax|aminmax)$", "cast"),
    (r"::_foreach_|::_fused_(?:sgd|adam|adamw|adagrad)", "optimizer"),
    (r"::(?:fill_|zero_|zeros|zeros_like|ones|ones_like|full|cat|_cat|stack|clone|contiguous|resize_)$", "copy"),
    (r"reducer::copy_bucket", "copy"),
    (
        r"norm|gelu|relu|silu|sigmoid|tanh|softmax|dropout|nll_loss|cross_entropy|embedding|threshold|reducer::mul",
        "elementwise",
    ),
    (
        r"::(?:add|sub|rsub|mul|div|sum|mean|max|min|abs|neg|exp|log|sqrt|rsqrt|pow|reciprocal|clamp|where|maximum"
        r"|minimum|addcmul|addcdiv|lerp|sgn|sign|eq|ne|lt|gt|le|ge|index|index_select|gather|scatter|randn|rand"
        r"|randint|normal|uniform|random|randperm|arange|isfinite|isneginf|all|any|argmax|bernoulli|square|clamp_min|clamp_max)_?$",
        "elementwise",
    ),
)

_PATTERNS = {
    device: [(re.compile(pattern, re.DOTALL), category) for pattern, category in patterns]
    for device, patterns in (("cuda", KERNELS), ("cpu", OPERATORS))
}


@lru_cache(maxsize=4096)
def categorize(name: str, device: Literal["cuda", "cpu"] = "cuda") -> Category:
    """Return the category of a GPU's kernel (or memcpy, memset) or a CPU's operator; `other` if no pattern matches."""
    return next((category for pattern, category in _PATTERNS[device] if pattern.search(name)), "other")


def breakdown(trace: Trace) -> Profile:
    """Return seconds per step, averaged over the trace's steps. Every moment is counted once, by the kernel that
    started first. Communication yields to every other, so `nccl` is what it really adds to a step. The seconds of
    single kernels include hidden time. The optimizer's kernels are those of its annotation, whatever their names.
    """
    device, steps = trace.device, trace.steps

    def per_step(total_s: float) -> float:
        # To whole nanoseconds.
        return max(0.0, round(total_s / steps, 9))

    spans: list[tuple[Span, Category]] = []
    of_kernel: dict[tuple[str, Category], list[Span]] = defaultdict(list)
    for span in trace.spans:
        category = categorize(span.name, device)
        category = "optimizer" if span.in_optimizer and category != "nccl" else category
        spans.append((span, category))
        of_kernel[span.name, category].append(span)
    others = [(span, category) for span, category in spans if category != "nccl"]
    communication = [(span, category) for span, category in spans if category == "nccl"]
    seconds: dict[Category, float] = defaultdict(float)
    for category, share in _first_come(others):
        seconds[category] += share
    if communication:
        seconds["nccl"] = _covered(spans) - _covered(others)
    by_category = {category: per_step(total) for category, total in seconds.items()}
    total_s = {key: sum(span.end_s - span.start_s for span in of) for key, of in of_kernel.items()}
    longest = sorted(total_s, key=lambda key: (-total_s[key], key))
    return Profile(
        device=device,
        steps=steps,
        busy_s=round(sum(by_category.values()), 9),
        by_category=dict(sorted(by_category.items(), key=lambda item: -item[1])),
        nccl_s=per_step(_covered(communication)),
        kernels=tuple(
            KernelTime(
                name=name,
                category=category,
                seconds_per_step=per_step(total_s[name, category]),
                calls_per_step=sum(not span.continued for span in of_kernel[name, category]) / steps,
            )
            for rank, (name, category) in enumerate(longest)
            if rank < LONGEST or category in GEMMS
        ),
    )


def _first_come(spans: Iterable[tuple[Span, Category]]) -> Iterator[tuple[Category, float]]:
    """Yield each span's time that no earlier span has taken. spans: in order of start."""
    taken = float("-inf")
    for span, category in spans:
        yield category, max(0.0, span.end_s - max(span.start_s, taken))
        taken = max(taken, span.end_s)


def _covered(spans: Iterable[tuple[Span, Category]]) -> float:
    return sum(share for _, share in _first_come(spans))
