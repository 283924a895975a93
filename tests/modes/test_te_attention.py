"""What Transformer Engine says about its choice of attention is kept, and not printed; a stand-in says it here."""

import logging
import sys
import types

import pytest

from fp8bench.modes.te_attention import LOGGER, AttentionLog, listen

PACKAGE = "transformer_engine.pytorch.attention.dot_product_attention"
SAID = [
    "Running with config={'transformer_engine_version': '2.20.2', 'flash_attn_version': '2.8.3', "
    "'flash_attn_3_version': 'not installed', 'device_compute_capability': 'sm90'}",
    "Disabling FlashAttention 3 due to: not installed",
    "Available backends = {FlashAttention=True (2.8.3), FusedAttention=True (sub-backend 1), UnfusedDotProduct=True}",
    "Selected backend = FusedAttention (sub-backend 1)",
]


@pytest.fixture
def transformer_engine(monkeypatch):
    """A Transformer Engine that has the logger, and sets its level as the real one does."""

    class AttentionLogging:
        _log_level = logging.WARNING

    utils = types.ModuleType(f"{PACKAGE}.utils")
    utils.AttentionLogging = AttentionLogging
    names = PACKAGE.split(".")
    for end in range(1, len(names) + 1):
        monkeypatch.setitem(sys.modules, ".".join(names[:end]), types.ModuleType(".".join(names[:end])))
    sys.modules[PACKAGE].utils = utils
    monkeypatch.setitem(sys.modules, f"{PACKAGE}.utils", utils)
    logger = logging.getLogger(LOGGER)
    before = logger.level, logger.propagate
    yield utils
    logger.level, logger.propagate = before
    for handler in [handler for handler in logger.handlers if isinstance(handler, AttentionLog)]:
        logger.removeHandler(handler)


def choose(utils):
    """As the real one does at the first forward pass of a shape."""
    logger = logging.getLogger(LOGGER)
    logger.setLevel(utils.AttentionLogging._log_level)
    for line in SAID:
        logger.debug(line)
    logger.info("Attention runs")


def test_the_lines_that_tell_about_the_choice_are_kept_in_order_with_the_packages_versions(transformer_engine):
    log = listen()
    choose(transformer_engine)

    assert log.evidence() == {
        "attention_choice": SAID[1:],
        "flash_attn": {"flash_attn": "2.8.3", "flash_attn_3": "not installed"},
    }


def test_another_shape_that_is_chosen_alike_says_nothing_new(transformer_engine):
    log = listen()
    choose(transformer_engine)
    choose(transformer_engine)

    assert log.said == SAID[1:]


class Heard(logging.Handler):
    """What reaches a logger."""

    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)


def test_nothing_of_it_is_printed(transformer_engine, capsys, monkeypatch):
    heard = Heard()
    monkeypatch.setattr(logging.getLogger(), "handlers", [heard])
    listen()
    choose(transformer_engine)

    assert (capsys.readouterr().err, heard.records) == ("", [])


def test_what_other_loggers_say_would_be_heard(monkeypatch):
    heard = Heard()
    monkeypatch.setattr(logging.getLogger(), "handlers", [heard])
    logging.getLogger("another").warning("something")

    assert [record.getMessage() for record in heard.records] == ["something"]


def test_to_listen_twice_is_to_listen_once(transformer_engine):
    first = listen()

    assert listen() is first
    choose(transformer_engine)
    assert first.said == SAID[1:]


def test_where_nothing_was_said_there_is_nothing_to_record(transformer_engine):
    assert listen().evidence() == {}


def test_a_version_without_that_logger_is_not_listened_to(monkeypatch):
    monkeypatch.setitem(sys.modules, PACKAGE, None)

    assert listen() is None
