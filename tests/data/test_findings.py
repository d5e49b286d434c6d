"""The summary of what is skipped or reinterpreted."""

import json

from detlite.data.findings import Finding, Findings, summary


def test_equal_findings_are_counted():
    findings = Findings()
    for line in (3, 9):
        findings.add("class 7 is unknown", "Skipped.", f"a.txt line {line}", "label line")
    findings.add("empty files", "Read as background.", "b.txt", "label file")
    assert [str(one) for one in findings] == [
        "class 7 is unknown: 2 label lines, for example a.txt line 3. Skipped.",
        "empty files: 1 label file, for example b.txt. Read as background.",
    ]
    assert list(Findings.from_json(findings.to_json())) == list(findings)


def test_findings_of_some_images():
    findings = Findings()
    findings.add("a", "b.", "annotation 1", images=[7, 7, 8])
    findings.add("c", "d.", "line 1", "line")
    findings.assign(7)
    findings.add("c", "d.", "line 2", "line", count=2)
    findings.assign(None)
    findings.add("files", "Kept.", "c.txt", "file")
    findings = Findings.from_json(json.loads(json.dumps(findings.to_json())))
    for images, others, expected in (
        ("7", True, [("a", 2, "annotation 1"), ("c", 3, "line 1"), ("files", 1, "c.txt")]),
        ("8", False, [("a", 1, "h.png"), ("files", 1, "c.txt")]),
    ):
        part = findings.of_images({images: "h.png"}, others)
        assert [(one.what, one.count, one.example) for one in part] == expected
        assert all(one.images.keys() <= {images} for one in part)


def test_plurals_and_totals():
    assert str(Finding("odd", "Look.", 1, "entry")) == "odd: 1 entry. Look."
    assert str(Finding("odd", "Look.", 1, "entry", total=3)) == "odd: 1 of 3 entries. Look."
    assert str(Finding("masks are off", "Look.", 0)) == "masks are off. Look."


def test_foreign_members_are_ignored():
    for value in (None, 5, "text", [3], [{"what": "x", "other": 1}], [{"what": 1, "effect": 2}],
                  [{"what": "x", "effect": "y", "images": {"1": "many"}}]):  # fmt: skip
        assert len(Findings.from_json(value)) == 0


def test_summary_lists_shared_findings_once():
    shared, own = Finding("a", "b."), Finding("c", "d.", 2, example="annotation 4")
    text = summary({"train.json": [shared], "val.json": [shared, own], "other.json": []})
    assert text.splitlines() == [
        "train.json: some entries are skipped, reinterpreted or not used:",
        "  - a: 1 annotation. b.",
        "val.json: some entries are skipped, reinterpreted or not used:",
        "  - c: 2 annotations, for example annotation 4. d.",
    ]
    assert summary({}) == ""
