"""The expression of a claim: which figures of the records test it.

    gain(instance.te_fp8, instance.te_bf16)         of each instance that has both
    speedup(p5.te_fp8_128, p4d.te_bf16)             of these two
    1 - 1 / (1 + gain(p5.te_fp8_128, p4d.bf16))     how much cheaper an image is
    layer_error(instance.linear_fp8)                of each instance with a record of `fp8bench numerics`
    cast(0.3952, float8_e4m3fn)                     of no instance: by the format's definition

An expression has numbers, + - * /, brackets, and the functions of FUNCTIONS, and nothing else. Python's `ast` parses
it, this module walks the result, and Python evaluates nothing. A variant is named with its instance: `instance` is the
one under test, another name is of the catalogue. Every name is checked when claims are read, before any record is.

Two values that each have an interval are joined by a function (`speedup`, `gain`), which knows their processes, and
never by an operator, which does not.
"""

import ast
import difflib
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fp8bench.kinds.run.claims.scalings import SCALINGS
from fp8bench.numerics.definitions import DEFINITIONS
from fp8bench.schema.errors import UsageError, nearest

Kind = Literal["variant", "instance", "layer", "format", "scaling", "number"]

Origin = Literal["measured", "published", "catalogue", "definition"]
"""Where a value comes from: whether any part of it was published and not measured here, is a price of the catalogue, or
follows from the definition of a number format.
"""

UNDER_TEST = "instance"
"""The name of the instance that a claim is tested on."""

LONGEST = 300
"""The most characters of an expression; a claim that needs more should be two."""


@dataclass(frozen=True)
class Function:
    """A function. takes: the kinds of its arguments. exact: whether its values need no interval."""

    takes: tuple[Kind, ...]
    exact: bool
    help: str


BY_DEFINITION: dict[str, tuple[tuple[Kind, ...], str]] = {
    "largest": (("format",), "the format's largest value"),
    "smallest_normal": (("format",), "the format's smallest normal value"),
    "eps": (("format",), "the format's step from 1 to the next value"),
    "cast": (("number", "format"), "what the number becomes in the format, to nearest, ties to even"),
    "block_error": (("scaling",), "relative error of a cast of values with outliers"),
    "zeroed": (("scaling",), "share of such values that become zero"),
    "transposed_error": (("scaling",), "relative error of the transpose, cast from the values"),
    "requantized_error": (("scaling",), "relative error of the transpose, cast from the first cast"),
    "differing": (("scaling",), "share of the values that a cast and the transpose's cast hold as different numbers"),
}
"""Functions of number formats and ways to scale, as in `fp8bench dtypes`: their arguments, and what they return."""

NAMES: dict[str, dict[str, str]] = {
    "format": {name: name for name in DEFINITIONS},
    "scaling": {one.name.replace("-", "_"): one.name for one in SCALINGS if one.name},
}

FUNCTIONS = {
    "step": Function(("variant",), False, "seconds a step"),
    "throughput": Function(("variant",), False, "images (or tokens) a second"),
    "units_per_usd": Function(("variant",), False, "images (or tokens) for a dollar"),
    "speedup": Function(("variant", "variant"), False, "throughput of the first over that of the second"),
    "gain": Function(("variant", "variant"), False, "units per USD of the first over those of the second, minus 1"),
    "per_gpu": Function(("variant", "variant"), False, "throughput a GPU of the first over that of the second"),
    "loss_gap": Function(("variant", "variant"), False, "loss of the first minus that of the second, in nats"),
    "memory": Function(("variant",), True, "peak bytes allocated on a GPU"),
    "valid": Function(("variant",), True, "1 where it computes what the plain model does, 0 where it is `invalid`"),
    "graph_breaks": Function(("variant",), True, "how often torch.compile's graphs broke, where it was compiled"),
    "largest_batch": Function(("variant",), True, "largest batch size a GPU that a search (`auto`) found to fit"),
    "price": Function(("instance",), True, "USD an hour, on demand, today"),
    "layer_error": Function(("layer",), True, "relative error of what a layer gives, against float64"),
    **{name: Function(takes, True, help) for name, (takes, help) in BY_DEFINITION.items()},
}

_GIVE_IT = f"Give it to a function: {', '.join(FUNCTIONS)}"

_OPERATORS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


@dataclass(frozen=True)
class Operand:
    """An argument of a function. instance: None is the one under test. variant: a name in the file, or a format or way
    to scale; None: none. number: the value, for a number.
    """

    instance: str | None
    variant: str | None
    number: float | None = None
    of_instance: bool = True


def of_both(one: Origin, other: Origin) -> Origin:
    """Return the origin that proves less; published figures prove least."""
    return next(origin for origin in ("published", "catalogue", "measured", "definition") if origin in (one, other))


@dataclass(frozen=True)
class Value:
    """A value. low, high: its 95 % interval; None if there is none, and equal if the value is exact.

    records: the ids of the runs that it is made of. doubt: why the value decides nothing, whatever its interval.
    """

    value: float
    low: float | None
    high: float | None
    origin: Origin = "measured"
    records: tuple[str, ...] = ()
    doubt: str | None = None

    @classmethod
    def exact(cls, value: float, records: tuple[str, ...] = (), origin: Origin = "measured") -> "Value":
        """Return a value that needs no interval."""
        return cls(value, value, value, origin, records)

    def _joined(self, other: "Value", value: float, ends: Iterable[float] | None) -> "Value":
        found = None if ends is None else sorted(ends)
        return Value(
            value=value,
            low=None if found is None else found[0],
            high=None if found is None else found[-1],
            origin=of_both(self.origin, other.origin),
            records=tuple(dict.fromkeys((*self.records, *other.records))),
            doubt=self.doubt or other.doubt,
        )


Call = Callable[[str, tuple[Operand, ...]], Value]
"""A function that returns the value of a call."""


@dataclass(frozen=True)
class Expression:
    """A parsed expression. text: as written. operands: all that it names, by how they are written."""

    text: str
    body: ast.expr
    operands: Mapping[str, Operand]

    @property
    def instances(self) -> tuple[str, ...]:
        """The instances that it names, without the one under test."""
        return tuple(dict.fromkeys(one.instance for one in self.operands.values() if one.instance is not None))

    @property
    def functions(self) -> frozenset[str]:
        """The functions that it calls."""
        names = (node.func for node in ast.walk(self.body) if isinstance(node, ast.Call))
        return frozenset(name.id for name in names if isinstance(name, ast.Name))

    @property
    def of_any(self) -> bool:
        """Whether it refers to the instance under test."""
        return any(one.of_instance and one.instance is None for one in self.operands.values())

    def value(self, call: Call) -> Value:
        """Evaluate the expression. Raises UsageError if it divides by zero, and whatever `call` raises."""
        return self._value(self.body, call)

    def _value(self, node: ast.expr, call: Call) -> Value:
        if isinstance(node, ast.Constant):
            return Value.exact(_number(node))
        if isinstance(node, ast.UnaryOp):
            inner = self._value(node.operand, call)
            return _applied("*", inner, Value.exact(-1.0)) if isinstance(node.op, ast.USub) else inner
        if isinstance(node, ast.BinOp):
            operator = _OPERATORS[type(node.op)]
            return _applied(operator, self._value(node.left, call), self._value(node.right, call))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return call(node.func.id, tuple(self.operands[ast.unparse(one)] for one in node.args))
        raise _no_part(node)


def parse(text: str, variants: Collection[str], instances: Collection[str], layers: Collection[str] = ()) -> Expression:
    """Parse an expression. variants, layers: names that the file defines. instances: the catalogue's; in an expression
    a `_` stands for a `-`, as in the names of ways to scale.

    Raises UsageError for an invalid expression, and for an unknown name, with the nearest known one.
    """
    if len(text) > LONGEST:
        raise UsageError(f"the expression has {len(text)} characters, more than {LONGEST}", "Make two claims of it")
    try:
        body = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(
            f"{text!r} is not an expression", "Write, for example, gain(instance.a, instance.b)"
        ) from error
    known = {one.replace("-", "_"): one for one in instances}
    checked = _Checked(frozenset(variants), known, frozenset(layers))
    checked.is_exact(body)
    return Expression(text, body, checked.operands)


class _Checked:
    """One walk over an expression: checks that every name is known, and that only functions join intervals."""

    def __init__(self, variants: Collection[str], instances: dict[str, str], layers: Collection[str] = ()) -> None:
        self.variants, self.instances, self.layers = variants, instances, layers
        self.operands: dict[str, Operand] = {}

    def is_exact(self, node: ast.expr) -> bool:
        """Return whether the value needs no interval. Raises UsageError for what does not belong in an expression."""
        if isinstance(node, ast.Constant):
            _number(node)
            return True
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            return self.is_exact(node.operand)
        if isinstance(node, ast.BinOp):
            return self._joins_exactly(node)
        if isinstance(node, ast.Call):
            return self._calls_exactly(node)
        if isinstance(node, ast.Name):
            raise self._unknown_variable(node.id, "number")
        if isinstance(node, ast.Attribute):
            raise UsageError(f"{ast.unparse(node)} is a variant, and no number", _GIVE_IT)
        raise _no_part(node)

    def _joins_exactly(self, node: ast.BinOp) -> bool:
        if type(node.op) not in _OPERATORS:
            raise _no_part(node)
        left, right = self.is_exact(node.left), self.is_exact(node.right)
        if not left and not right:
            raise UsageError(
                f"{ast.unparse(node)}: both sides have an interval, which no operator joins",
                "Use speedup(a, b), per_gpu(a, b) or gain(a, b), which know the processes of both",
            )
        return left and right

    def _calls_exactly(self, node: ast.Call) -> bool:
        if not isinstance(node.func, ast.Name):
            raise _no_part(node.func)
        name = node.func.id
        if name not in FUNCTIONS:
            raise _unknown("function", name, FUNCTIONS)
        function = FUNCTIONS[name]
        if node.keywords or len(node.args) != len(function.takes):
            raise UsageError(f"{ast.unparse(node)}: {name} takes {_counted(function.takes)}", f"It is {function.help}")
        for argument, kind in zip(node.args, function.takes, strict=True):
            self.operands[ast.unparse(argument)] = self._operand(argument, kind)
        return function.exact

    def _operand(self, node: ast.expr, kind: Kind) -> Operand:
        if kind in ("format", "scaling", "number"):
            return _defined(node, kind)
        if kind == "instance":
            if not isinstance(node, ast.Name):
                raise UsageError(f"{ast.unparse(node)} is not an instance", "Name one alone, as p5 or instance")
            return Operand(self._instance(node.id), None)
        if isinstance(node, ast.Name):
            raise self._unknown_variable(node.id, kind)
        if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
            raise UsageError(f"{ast.unparse(node)} is not a {kind}", "Name its instance and it, as instance.te_fp8")
        known = self.variants if kind == "variant" else self.layers
        if node.attr not in known:
            raise _unknown(kind, node.attr, known)
        return Operand(self._instance(node.value.id), node.attr)

    def _instance(self, name: str) -> str | None:
        if name == UNDER_TEST:
            return None
        if name not in self.instances:
            raise _unknown("variable", name, [UNDER_TEST, *self.instances])
        return self.instances[name]

    def _unknown_variable(self, name: str, wanted: str) -> UsageError:
        """Return the error for a name without a dot. wanted: what is expected in its place."""
        if name == UNDER_TEST or name in self.instances:
            remedy = _GIVE_IT if wanted == "number" else f"Write {name}.NAME, with a name under `{wanted}s:`"
            return UsageError(f"{name} is an instance, and no {wanted}", remedy)
        if name in self.variants:
            return UsageError(f"variant {name!r} has no instance", f"Write {UNDER_TEST}.{name}, or p5.{name}")
        known = [UNDER_TEST, *(f"{UNDER_TEST}.{one}" for one in self.variants), *self.instances]
        close = [f"{UNDER_TEST}.{one}" for one in nearest(name, self.variants)]
        return _unknown("variable", name, known, close)


def _counted(takes: Sequence[Kind]) -> str:
    """Return e.g. `2 variants` or, for different kinds, `a number and a format`."""
    if len(set(takes)) == 1:
        return f"{len(takes)} {takes[0]}{'s' if len(takes) > 1 else ''}"
    return " and ".join(f"a {kind}" for kind in takes)


def _defined(node: ast.expr, kind: Kind) -> Operand:
    """Return a number, or the name of a number format or of a way to scale. Raises UsageError for anything else."""
    if kind == "number":
        sign = -1.0 if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else 1.0
        inner = node.operand if isinstance(node, ast.UnaryOp) else node
        if not isinstance(inner, ast.Constant):
            raise UsageError(f"{ast.unparse(node)} is not a number", "Write one, as 0.3952")
        return Operand(None, None, sign * _number(inner), of_instance=False)
    known = NAMES[kind]
    if not isinstance(node, ast.Name) or node.id not in known:
        raise _unknown(kind, ast.unparse(node), known)
    return Operand(None, known[node.id], of_instance=False)


def _unknown(kind: str, name: str, known: Iterable[str], close: Iterable[str] = ()) -> UsageError:
    every = list(known)
    near = list(close) or nearest(name, every) or difflib.get_close_matches(name, every, 1, 0)
    return unknown_among(kind, name, every, near)


def unknown_among(kind: str, name: str, known: Collection[str], near: Iterable[str], at: str = "") -> UsageError:
    """Return the error for an unknown name. known: what there is; if nothing, the section is named. near: what may have
    been meant. at: the place in the file.
    """
    if known:
        remedy = f"Did you mean {' or '.join(map(repr, near))}"
    else:
        remedy = f"The file defines no {kind}: add it under `{kind}s:`"
    return UsageError(f"{at}unknown {kind} {name!r}", remedy)


def _no_part(node: ast.AST) -> UsageError:
    return UsageError(
        f"{ast.unparse(node)!r} does not belong into an expression",
        f"It has numbers, + - * /, and {', '.join(FUNCTIONS)}",
    )


def _number(node: ast.Constant) -> float:
    value = node.value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise _no_part(node)
    return float(value)


def _applied(operator: str, left: Value, right: Value) -> Value:
    """Return the result. One of the two is exact, so the ends are those of the other, moved or scaled."""
    if operator == "/" and right.value == 0:
        raise UsageError("the expression divides by zero", "Swap its two sides")
    value = _computed(operator, left.value, right.value)
    if not math.isfinite(value):
        raise UsageError("the expression's value is no finite number", "Use smaller numbers")
    if left.low is None or left.high is None or right.low is None or right.high is None:
        return left._joined(right, value, None)
    if operator == "/" and right.low <= 0 <= right.high:
        return left._joined(right, value, None)
    ends = [_computed(operator, a, b) for a in (left.low, left.high) for b in (right.low, right.high)]
    return left._joined(right, value, ends)


def _computed(operator: str, left: float, right: float) -> float:
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    return left * right if operator == "*" else left / right
