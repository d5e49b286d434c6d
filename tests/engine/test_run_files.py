"""Names of the files of a run, and the choice and the lock of its folder."""

import signal
import subprocess
import sys

import pytest

from detlite.config import ConfigError
from detlite.engine.run_files import check_output_dir, choose_output_dir, run_lock

_HOLD = """
import sys, time, filelock
with filelock.FileLock(sys.argv[1] + "/.run.lock"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_used_folder_is_not_mixed_with_a_new_run(tmp_path):
    folder = tmp_path
    for name in ("metrics.jsonl", "model_0000002.pth", "model_0000004.pth", "model_final.pth"):
        (folder / name).touch()
    with pytest.raises(
        ConfigError, match=r"OUTPUT_DIR .*metrics\.jsonl, model_final\.pth.*--resume"
    ):
        check_output_dir(folder, resume=False)
    check_output_dir(folder, resume=True)
    for name in ("metrics.jsonl", "model_final.pth"):
        (folder / name).unlink()
    with pytest.raises(ConfigError, match=r"model_0000004\.pth"):
        check_output_dir(folder, resume=False)
    check_output_dir(folder / "new", resume=False)


def test_a_run_without_a_named_folder_uses_the_next_number(tmp_path):
    folder = tmp_path / "photos"
    expected = [folder, tmp_path / "photos_2", tmp_path / "photos_3"]
    for place in expected:
        assert choose_output_dir(folder, resume=False) == place
        place.mkdir()
        assert choose_output_dir(folder, resume=False) == place  # an empty folder is no run
        (place / "metrics.jsonl").touch()
        assert choose_output_dir(folder, resume=True) == place
    assert choose_output_dir(tmp_path / "other", resume=True) == tmp_path / "other"


def test_second_run_is_refused(tmp_path):
    folder = tmp_path / "new" / "out"
    with run_lock(folder):
        refused = pytest.raises(ConfigError, match="out: another run is writing to this folder")
        with refused, run_lock(folder):
            pass
        with run_lock(folder, name="page.html"):
            pass
    assert not list(folder.iterdir())
    with run_lock(folder):
        pass


def test_lock_of_a_killed_process_is_taken_over(tmp_path):
    command = [sys.executable, "-c", _HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(ConfigError), run_lock(tmp_path):
            pass
        process.send_signal(signal.SIGKILL)
    assert list(tmp_path.iterdir())
    with run_lock(tmp_path):
        pass


def test_folder_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").touch()
    refused = pytest.raises(
        ConfigError, match=r"file.out: cannot be written to \(Not a directory\)"
    )
    with refused, run_lock(tmp_path / "file" / "out"):
        pass
