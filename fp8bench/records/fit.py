"""Limits what may be written of a record or of a rank's report: no secret of this process's environment, no control
character or lone surrogate, no text of megabytes. Numbers, and fields that say what a record is of, never change.
"""

import os
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from fp8bench.schema.errors import inert
from fp8bench.schema.private import secrets_of, shortened, without

ModelT = TypeVar("ModelT", bound=BaseModel)

IDENTITY = frozenset(
    "schema_version kind run_id status cause source instance session config fingerprint created_utc method_version "
    "machine".split()
)
"""Fields that identify a record, and are never changed."""

FACTS = frozenset("mode workload device_name cpu driver python versions unit name category".split())
"""Fields that tell what a record is of: a word in them stays even if somebody uses it as a password."""

LOGS = frozenset({"log", "traceback"})  # fields whose text has lines

LONGEST_LOG = 1 << 20
"""Characters. Of a longer log the beginning and the end are kept: where it broke, and the consequences."""


def fit(model: ModelT, environ: Mapping[str, str] = os.environ) -> ModelT:
    """Return a record or a report as it may be written; the same object if nothing had to be changed."""
    found: ModelT = _fit(model, secrets_of(environ), IDENTITY)
    return model if found == model else found


def fit_log(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return a log as it may be written, line by line."""
    return _fit_log(text, secrets_of(environ))


def _fit_log(text: str, secrets: Collection[str]) -> str:
    return "\n".join(map(inert, shortened(without(text, secrets), LONGEST_LOG).split("\n")))


def _fit(value: Any, secrets: Collection[str], omitted: Collection[str] = ()) -> Any:
    if isinstance(value, str):
        return inert(shortened(without(value, secrets)))
    if isinstance(value, BaseModel):
        update = {}
        for name, part in vars(value).items():
            if name in LOGS and isinstance(part, str):
                update[name] = _fit_log(part, secrets)
            elif name not in omitted:
                update[name] = _fit(part, () if name in FACTS else secrets)
        return value.model_copy(update=update)
    if isinstance(value, dict):
        return {_fit(name, secrets): _fit(part, secrets) for name, part in value.items()}
    # Thousands of samples hold no text.
    if isinstance(value, list | tuple) and value and not isinstance(value[0], float | int):
        return type(value)(_fit(part, secrets) for part in value)
    return value
