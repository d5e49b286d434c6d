"""Test that a class name has one meaning in the whole package."""

import re
from collections import defaultdict


def test_no_two_classes_share_a_name(repo_root):
    files: dict[str, list[str]] = defaultdict(list)
    for file in sorted((repo_root / "detlite").rglob("*.py")):
        for name in re.findall(r"^ *class (\w+)[(:]", file.read_text(), re.M):
            files[name].append(str(file.relative_to(repo_root)))
    shared = {name: paths for name, paths in files.items() if len(paths) > 1}
    assert not shared, shared
