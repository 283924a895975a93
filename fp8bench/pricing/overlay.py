"""One instance by itself in a file (results/<instance>/instance.yaml), laid over what the catalogue knows of it.

It adds prices, and must not make another machine of it. A price far from the catalogue's is taken, since it is the
user's, and doubted, since a rate of one GPU or of a month is easily written for a machine's hour.
"""

from collections.abc import Sequence
from pathlib import Path

from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import line_of
from fp8bench.schema.instance import INSTANCE_FILE, Instance, Price

ABSURD = 5
"""How many times the catalogue's price, or which part of it, nobody is taken to mean."""


def laid_over(own: Instance, known: Instance | None, path: Path, text: str) -> Instance:
    """own: as read from the file. known: the same instance so far. Own prices go before the known ones.

    Raises UsageError, by file and line, for a key that is not the folder's name, and for a GPU or a number of them that
    contradicts what is known.
    """
    folder = path.absolute().parent.name
    if path.name == INSTANCE_FILE and folder != own.key:
        raise UsageError(
            f"{path} line {line_of(text, ('key',))}: its key is {own.key!r}, and its folder is {folder!r}",
            "Give both one name, or move the file away",
        )
    if known is None:
        return own
    for field, ours, theirs in (
        ("gpu_count", own.gpu_count, known.gpu_count),
        ("gpu", own.gpu, known.gpu),
    ):
        if ours != theirs and None not in (ours, theirs):
            where = line_of(text, (field,))
            raise UsageError(
                f"{path} line {where}: {field} is {ours!r}, and the catalogue's {own.key} has {theirs!r}",
                "Correct it, or give a machine of your own another key",
            )
    prices = tuple(_doubted(price, known).model_copy(update={"own": True}) for price in own.prices)
    return own.model_copy(update={"prices": (*prices, *known.prices)})


def _doubted(price: Price, known: Instance) -> Price:
    usual = _usual(price, known.prices)
    if price.usd_per_hour is None or usual is None or usual.usd_per_hour is None:
        return price
    times = price.usd_per_hour / usual.usd_per_hour
    if 1 / ABSURD <= times <= ABSURD:
        return price
    far = f"{times:.1f} times" if times > 1 else f"1/{1 / times:.1f} of"
    doubt = (
        f"the price of {known.key}, {price.usd_per_hour:,.2f} USD/h ({price.source or 'no source'}), is {far} the "
        f"catalogue's {usual.usd_per_hour:,.2f}; a price is for the whole machine and one hour"
    )
    return price.model_copy(update={"doubt": doubt})


def _usual(price: Price, known: Sequence[Price]) -> Price | None:
    """The catalogue's for the same purchase whose day is nearest; one without a day where none has one."""
    alike = [one for one in known if one.purchase == price.purchase and one.usd_per_hour and not one.doubtful]
    dated = [(one.as_of, one) for one in alike if one.as_of is not None]
    if not dated:
        return next(iter(alike), None)
    day = price.as_of or max(as_of for as_of, _ in dated)
    return min(dated, key=lambda found: abs(found[0] - day))[1]
