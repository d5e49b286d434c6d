"""The summary of what is skipped or reinterpreted."""

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


def test_plurals_and_totals():
    assert str(Finding("odd", "Look.", 1, "entry")) == "odd: 1 entry. Look."
    assert str(Finding("odd", "Look.", 1, "entry", total=3)) == "odd: 1 of 3 entries. Look."
    assert str(Finding("masks are off", "Look.", 0)) == "masks are off. Look."


def test_foreign_members_are_ignored():
    for value in (None, 5, "text", [3], [{"what": "x", "other": 1}]):
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
