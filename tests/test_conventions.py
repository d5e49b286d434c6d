"""Test the conventions of the frameworks and how a config selects one."""

import dataclasses

import pytest

from detlite.config import ConfigError, load_config
from detlite.conventions import CONVENTIONS, Convention, convention_of


def test_there_are_five_conventions():
    frameworks = ["torchvision", "detectron2", "maskrcnn-benchmark", "mmdetection"]
    assert list(CONVENTIONS) == ["detlite", *frameworks]
    assert all(convention.name == name for name, convention in CONVENTIONS.items())
    assert len(set(CONVENTIONS.values())) == 5


def test_every_field_differs_between_frameworks():
    for field in dataclasses.fields(Convention):
        assert len({getattr(convention, field.name) for convention in CONVENTIONS.values()}) > 1


def test_config_selects_a_convention():
    assert convention_of(load_config()) == CONVENTIONS["detlite"]
    for name, convention in CONVENTIONS.items():
        assert convention_of(load_config(None, ["MODEL.CONVENTION", name])) == convention
    with pytest.raises(ConfigError, match="'detectron', but must be one of '', 'detlite'"):
        load_config(None, ["MODEL.CONVENTION", "detectron"])


def test_config_overrides_single_fields(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(
        "MODEL: {CONVENTION: torchvision, CONVENTION_OVERRIDE: [resize=floor, anchor_offset=1]}"
    )
    expected = dataclasses.replace(CONVENTIONS["torchvision"], resize="floor", anchor_offset=1.0)
    assert convention_of(load_config(file)) == expected
    cfg = load_config(None, ["MODEL.CONVENTION_OVERRIDE", "inclusive_boxes=True"])
    assert convention_of(cfg) == dataclasses.replace(CONVENTIONS["detlite"], inclusive_boxes=True)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("resiz=floor", "no field 'resiz'; did you mean resize"),
        ("qwx=1", "no field 'qwx'; known: inclusive_boxes, "),
        ("name=my", "no field 'name'"),
        ("resize=down", "resize is 'down', but must be one of round, floor, interpolate"),
        ("resize", "resize is '', but must be one of"),
        ("inclusive_boxes=1", "inclusive_boxes is '1', but must be bool"),
        ("anchor_offset=True", "anchor_offset is 'True', but must be float"),
        ("anchor_offset=half", "anchor_offset is 'half', but must be float"),
    ],
)
def test_invalid_overrides_are_rejected(assignment, message):
    with pytest.raises(ConfigError, match=rf"MODEL.CONVENTION_OVERRIDE.*{message}"):
        load_config(None, ["MODEL.CONVENTION_OVERRIDE", [assignment]])


def test_documentation_lists_every_field(repo_root):
    page = (repo_root / "docs" / "conventions.md").read_text()
    for field in dataclasses.fields(Convention)[1:]:
        values = [str(getattr(convention, field.name)) for convention in CONVENTIONS.values()]
        assert f"| `{field.name}` | {' | '.join(values)} |\n" in page
