"""Handles several variants of a mode in one session: what tells them apart, and what a resumed session and the request
must have in common. Pure.
"""

from collections.abc import Iterable, Sequence

from fp8bench.schema.batch import AUTO
from fp8bench.schema.config import RunConfig, VariantSettings
from fp8bench.schema.errors import UsageError

IN_WORDS = {"batch_size": "batch", "grad_accumulation": "micro-batches", "te_attention": "attention"}
"""Settings that tables call by another name."""

MOST_NAMED = 3
"""The number of changes that one line names."""


def owned(variants: Sequence[VariantSettings]) -> frozenset[str]:
    """Return the settings that variants have of their own: every variant has all of them."""
    return frozenset(name for one in variants for name in one if name != "mode")


def notes(variants: Sequence[VariantSettings]) -> list[str]:
    """Return for each variant what tells it from others of its mode: `batch 128, compile on`; empty if it has none."""
    return [_note(one, [other for other in variants if other["mode"] == one["mode"]]) for one in variants]


def _note(one: VariantSettings, alike: Sequence[VariantSettings]) -> str:
    names = [name for name in one if any(other[name] != one[name] for other in alike)]
    return ", ".join(f"{_word(name)} {_value(one[name])}" for name in names)


def _word(name: str) -> str:
    return IN_WORDS.get(name, name.replace("_", " "))


def _value(value: object) -> str:
    return "by default" if value is None else str(value)


def apart(configs: Sequence[RunConfig], variants: Sequence[VariantSettings]) -> list[RunConfig]:
    """Return the configurations, all different: where the batch size is yet to be found, the first one tried is not a
    size that another variant was given.

    Raises UsageError for two variants that are the same on this machine, e.g. if one leaves a setting to the machine
    that the other gives.
    """
    given = [config for config, one in zip(configs, variants, strict=True) if one.get("batch_size") != AUTO]
    found: list[RunConfig] = []
    for config, one in zip(configs, variants, strict=True):
        while one.get("batch_size") == AUTO and config in (*given, *found):
            config = config.model_copy(update={"batch_size": 2 * config.batch_size})
        if config in found:
            raise UsageError(
                f"variants {found.index(config) + 1} and {len(found) + 1} are the same here: {config.mode_label} at "
                f"batch size {config.batch_size}",
                "Remove one of them: --rounds measures each variant several times",
            )
        found.append(config)
    return found


def refuse_changed(session_id: str, kept: Sequence[VariantSettings], now: Sequence[VariantSettings]) -> None:
    """Raise UsageError that names what changed between two lists of variants. Their order may change: what is measured
    does not depend on it.
    """
    if not kept:
        raise UsageError(
            f"session {session_id!r} was measured without variants",
            "Omit --config to resume it, or choose another name with --session",
        )
    gone, new = ([one for one in mine if one not in other] for mine, other in ((kept, now), (now, kept)))
    if not gone and not new:
        return
    changes = []
    for one in gone:
        nearest = min(
            (each for each in new if each["mode"] == one["mode"]), key=lambda each: _apart(one, each), default=None
        )
        if nearest is None:
            changes.append(f"{described(one)} is no longer there")
        else:
            new.remove(nearest)
            changes.append(_changed(one, nearest))
    changes += [f"{described(one)} is new" for one in new]
    more = f", and {len(changes) - MOST_NAMED} more" if len(changes) > MOST_NAMED else ""
    raise UsageError(
        f"session {session_id!r} was measured with other variants: {'; '.join(changes[:MOST_NAMED])}{more}",
        "Restore the file, or omit --config to resume the session with its own variants, or choose another name with "
        "--session",
    )


def described(one: VariantSettings) -> str:
    """Return the mode with all settings of its own: `te-fp8:delayed (batch 128, compile off)`."""
    own = ", ".join(f"{_word(name)} {_value(value)}" for name, value in one.items() if name != "mode")
    return f"{one['mode']} ({own})" if own else str(one["mode"])


def _apart(one: VariantSettings, other: VariantSettings) -> int:
    return len(_unlike(one, other))


def _unlike(one: VariantSettings, other: VariantSettings) -> list[str]:
    return [name for name in dict.fromkeys((*one, *other)) if one.get(name) != other.get(name)]


def _changed(one: VariantSettings, now: VariantSettings) -> str:
    changes = [f"{_word(name)} {_said(one, name)} (now {_said(now, name)})" for name in _unlike(one, now)]
    return f"{one['mode']} with {', '.join(changes)}"


def _said(one: VariantSettings, name: str) -> str:
    return _value(one[name]) if name in one else "as for all variants"


def unlike_settings(kept: Iterable[RunConfig], configs: Sequence[RunConfig]) -> dict[str, str]:
    """Return in words, by field, how a session's configurations differ from those now. A configuration without an equal
    is compared with the nearest of its mode. Empty if each has an equal.
    """
    found: dict[str, str] = {}
    for config in dict.fromkeys(kept):
        if config in configs:
            continue
        alike = [one for one in configs if one.mode_label == config.mode_label] or list(configs)
        fields = min((_fields(config, one) for one in alike), key=len)
        for name, now in fields.items():
            found.setdefault(name, f"{name} {getattr(config, name)} (now {now})")
    return found


def _fields(one: RunConfig, other: RunConfig) -> dict[str, object]:
    names = RunConfig.model_fields
    return {name: getattr(other, name) for name in names if getattr(one, name) != getattr(other, name)}
