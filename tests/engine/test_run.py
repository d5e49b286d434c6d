"""Logging of a run to the console and log.txt."""

import contextlib
import logging
import warnings

import pytest

from detlite.engine.run import logging_to


@pytest.fixture
def bare_root(monkeypatch):
    """Return a function that removes the root logger's handlers, as in a command."""

    def make():
        logger = logging.getLogger()
        monkeypatch.setattr(logger, "handlers", [])
        return logger

    return make


def test_messages_go_to_console_and_file(tmp_path, bare_root, capsys):
    bare_root()
    for message in ("first", "second"):
        with logging_to(tmp_path):
            logging.getLogger("detlite.engine").info(message)
            warnings.warn(f"{message} warning", stacklevel=1)
    text = (tmp_path / "log.txt").read_text()
    out = capsys.readouterr().out
    for message in ("first", "second", "first warning", "second warning"):
        assert message in text
        assert message in out


@pytest.mark.parametrize("captured", [False, True])
def test_logging_settings_are_restored(tmp_path, bare_root, capsys, captured):
    root_logger = bare_root()
    own = logging.NullHandler()
    root_logger.addHandler(own)
    logging.captureWarnings(captured)
    before = root_logger.level, warnings.showwarning
    try:
        with contextlib.suppress(ZeroDivisionError), logging_to(tmp_path):
            assert root_logger.handlers[0] is own
            logging.getLogger("detlite").info("message")
            _ = 1 / 0
        assert (root_logger.level, warnings.showwarning) == before
    finally:
        logging.captureWarnings(False)
    assert root_logger.handlers == [own]
    assert "message" in (tmp_path / "log.txt").read_text()
    assert capsys.readouterr().out == ""  # the caller configured handlers


def test_other_ranks_log_only_warnings_to_the_console(tmp_path, bare_root, monkeypatch, capsys):
    bare_root()
    monkeypatch.setattr("detlite.engine.run.is_main", lambda: False)
    with logging_to(tmp_path):
        logging.getLogger("detlite").info("quiet")
        logging.getLogger("detlite").warning("loud")
    out = capsys.readouterr().out
    assert "quiet" not in out
    assert "loud" in out
    assert not (tmp_path / "log.txt").exists()


def test_the_log_is_not_written_through_a_link(tmp_path):
    (tmp_path / "log.txt").symlink_to(tmp_path / "other.txt")
    with pytest.raises(OSError, match="is a symbolic link"), logging_to(tmp_path):
        pass
    assert not (tmp_path / "other.txt").exists()
