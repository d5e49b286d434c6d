"""Test that a class name has one meaning in the whole package."""

import ast
from collections import defaultdict


def test_no_two_classes_share_a_name(repo_root):
    files: dict[str, list[str]] = defaultdict(list)
    for file in sorted((repo_root / "detlite").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(), str(file))):
            if isinstance(node, ast.ClassDef):
                files[node.name].append(str(file.relative_to(repo_root)))
    shared = {name: paths for name, paths in files.items() if len(paths) > 1}
    assert not shared, shared
