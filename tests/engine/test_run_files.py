"""Names of the files of a run, and the choice of its folder."""

import pytest

from detlite.config import ConfigError
from detlite.engine.run_files import check_output_dir, choose_output_dir


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
