"""Test files, inheritance, overrides and invalid values."""

from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from detlite.config import ConfigError, default_config, expand_path, load_config
from tests.builders import write_text


@pytest.fixture
def write(tmp_path):
    return lambda text, name="config.yaml": write_text(tmp_path / name, text)


# ---- files


def value_of(cfg, name):
    for part in name.split("."):
        cfg = cfg[part]
    return cfg


def test_file_changes_only_its_keys(write):
    assert load_config() == load_config(write("# nothing\n")) == default_config()
    text = "SOLVER: {BASE_LR: 1e-4, STEPS: '(3, 4)'}\nMODEL: {MASK_ON: yes}"
    cfg = load_config(str(write(text)))
    assert (cfg.SOLVER.BASE_LR, cfg.SOLVER.STEPS, cfg.MODEL.MASK_ON) == (1e-4, (3, 4), True)
    assert cfg.SOLVER.MOMENTUM == load_config().SOLVER.MOMENTUM
    with pytest.raises(AttributeError):  # a config is frozen
        cfg.SOLVER.BASE_LR = 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "is not YAML"),
        ("a: " + "[" * 200, "is nested too deeply"),
        ("a: !!bool maybe", "is not YAML"),
        ('a: !!int ""', "is not YAML"),
        ("a: [" + "1," * 150_000 + "1]", "has more than 100000 values"),
        ("a: [*b]", "is not YAML: found undefined alias"),
        ("a: &a [*a]", "has more than 100000 values, or a recursive alias"),
        (
            "a: &a [x, x, x, x, x, x, x, x, x]\n"
            + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in pairwise("abcdefgh")),
            "has more than 100000 values",
        ),
        ("a: " + "x" * 10_001, "a value has 10001 characters"),
        (f"a: &a {'x' * 9999}\nb: [{'*a, ' * 2000}]", "has more than 100000 values"),
        ("[1, 2]: 3", "the key in line 1 is a list or a section"),
        ("just words", "contains str instead of keys and values"),
        ("MODEL:\nSEED: 1", "unknown config key MODEL (a section with keys such as MODEL."),
        ("MODEL: 3", "unknown config key MODEL (a section with keys such as MODEL."),
        ("SOLVER: {BASE_LR: {X: 1}}", "SOLVER.BASE_LR is {'X': 1}"),
        ("_BASE_: 3", "_BASE_ must be a path or a list of paths, not 3"),
        ("_BASE_: [a.yaml, 3]", "_BASE_ must be a path or a list of paths, not ['a.yaml'"),
        ('DATALOADER: {"\\n": 0}', r"unknown config key 'DATALOADER.\n'."),
        ("1: 2", "unknown config key 1"),
        ("SEED: !!python/object/apply:os.getpid []", "is not YAML"),
        (
            "SOLVER: {MAX_ITER: 7, MAX_MINUTES: 15}",
            "; set is SOLVER.MAX_ITER 7 and SOLVER.MAX_MINUTES 15.0",
        ),
        ("SOLVER: {MAX_ITER: null}", "; set is none"),
        # PyYAML would compute with powers of 60 for hours.
        *(
            (key % ("1" + ":59" * 300), "is not YAML: a number has 90")
            for key in ("SOLVER: {MAX_ITER: %s}", "SOLVER: {BASE_LR: %s.5}", "%s: 3")
        ),
    ],
)
def test_invalid_file_is_named(write, text, message):
    file = write(text)
    with pytest.raises(ConfigError) as error:
        load_config(file)
    assert str(file) in str(error.value)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none", r"cannot be read \(No such file"), ("folder", "cannot be read"), ("x", "is not Y"),
        ("loop", "cannot be read"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_read(tmp_path, name, message):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "x").write_bytes(b"\xff\xfe\x00\x80")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match=f"{tmp_path / name}: {message}"):
        load_config(tmp_path / name)


# ---- duplicate keys


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SEED: 1\nSEED: 1", "SEED appears twice, in lines 1 and 2"),
        ("SOLVER:\n  GAMMA: 1\n  GAMMA: 2", r"SOLVER\.GAMMA appears twice, in lines 2 and 3"),
        ("SOLVER: {GAMMA: 1}\nSEED: 1\nSOLVER: {GAMMA: 2}", r"SOLVER\.GAMMA .* lines 1 and 3"),
        ("SOLVER: {GAMMA: 1}\nSOLVER: 2", "SOLVER appears twice"),
        ("_BASE_: a.yaml\n_BASE_: b.yaml", "_BASE_ appears twice"),
        (
            "DATASETS: {CATALOG: [{name: a}, {name: c, name: d}]}",
            r"DATASETS\.CATALOG\[1\]\.name app",
        ),
    ],
)
def test_repeated_key_is_an_error_with_its_lines(write, text, message):
    file = write(text)
    with pytest.raises(ConfigError, match=f"^{file}: {message}"):
        load_config(file)


def test_repeated_sections_are_merged_and_anchors_work(write):
    """maskrcnn-benchmark's files for ResNeXt have such sections."""
    text = "MODEL:\n  RESNETS: {STRIDE_IN_1X1: False}\n  RESNETS: {NUM_GROUPS: 32}\n"
    resnets = load_config(write(text + "MODEL: {MASK_ON: True}")).MODEL.RESNETS
    assert (resnets.STRIDE_IN_1X1, resnets.NUM_GROUPS) == (False, 32)
    text = "MODEL:\n  ROI_BOX_HEAD: &a {POOLER_RESOLUTION: 9}\n  ROI_MASK_HEAD: {<<: *a}"
    assert load_config(write(text)).MODEL.ROI_MASK_HEAD.POOLER_RESOLUTION == 9
    text = "DATASETS: {CATALOG: [&a {name: x}, {name: y, more: *a, more: {name2: z}}]}\n"
    first, second = load_config(write(text)).DATASETS.CATALOG
    assert first == {"name": "x"}  # merging does not change it
    assert second == {"name": "y", "more": {"name": "x", "name2": "z"}}


# ---- _BASE_


def write_all(write, files):
    """Write files and return the last one."""
    return [write(text, name) for name, text in files.items()][-1]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (  # a base of a base is read first
            {
                "deep/a.yaml": "SEED: 1\nSOLVER: {BASE_LR: 0.1, MOMENTUM: 0.1, GAMMA: 0.7}",
                "b.yaml": "_BASE_: deep/a.yaml\nSOLVER: {BASE_LR: 0.2, MOMENTUM: 0.2}",
                "leaf/c.yaml": "_BASE_: ../b.yaml\nSOLVER: {BASE_LR: 0.3}",
            },
            {"SEED": 1, "SOLVER.BASE_LR": 0.3, "SOLVER.MOMENTUM": 0.2, "SOLVER.GAMMA": 0.7},
        ),
        (  # a later base overrides earlier ones
            {
                "root.yaml": "SEED: 1\nSOLVER: {BASE_LR: 0.1, GAMMA: 0.1}",
                "a.yaml": "_BASE_: root.yaml\nSOLVER: {MOMENTUM: 0.2}",
                "b.yaml": "SOLVER: {BASE_LR: 0.3, MOMENTUM: 0.3}",
                "c.yaml": "_BASE_: [a.yaml, b.yaml]\nSOLVER: {GAMMA: 0.4}",
            },
            {"SEED": 1, "SOLVER.BASE_LR": 0.3, "SOLVER.MOMENTUM": 0.3, "SOLVER.GAMMA": 0.4},
        ),
        (  # sections merge, and lists are replaced
            {
                "a.yaml": "DATASETS: {TRAIN: [a, b], TEST: [c]}",
                "b.yaml": "_BASE_: a.yaml\nDATASETS: {TRAIN: [d]}",
            },
            {"DATASETS.TRAIN": ("d",), "DATASETS.TEST": ("c",)},
        ),
    ],
)
def test_bases(write, files, expected):
    cfg = load_config(write_all(write, files))
    assert {name: value_of(cfg, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("files", "message"),
    [
        *(
            (
                {
                    f"{name}.yaml": f"_BASE_: {base}.yaml"
                    for name, base in zip(names, names[1:] + names[0], strict=True)
                },
                "is its own _BASE_",
            )
            for names in ("a", "ab", "abc")
        ),
        (
            {"a.yaml": "_BASE_: nowhere.yaml", "b.yaml": "_BASE_: a.yaml"},
            r"a\.yaml: its _BASE_ \S*nowhere\.yaml: cannot be read \(No such file",
        ),
        (
            {"a.yaml": "SOLVER: {BASE_LR: fast}", "b.yaml": "_BASE_: a.yaml"},
            r"^\S*/a\.yaml: SOLVER\.BASE_LR",
        ),
        (
            {
                "25.yaml": "{}",
                **{f"{n}.yaml": f"_BASE_: [{n + 1}.yaml, {n + 1}.yaml]" for n in range(24, -1, -1)},
            },
            r"0\.yaml: is made of more than 100 files",
        ),
        ({"a.yaml": '_BASE_: "b\\0.yaml"'}, "cannot be read .embedded null"),
        ({"a.yaml": 'IMPORTS: ["b\\0.py"]'}, "a path cannot have a null character"),
    ],
)
def test_invalid_bases(write, files, message):
    file = write_all(write, files)
    with pytest.raises(ConfigError, match=message):
        load_config(file)


# ---- overrides


def test_overrides_replace_values_of_the_file(write):
    opts = ["SEED", 1, "SOLVER.BASE_LR", "0.25", "SEED", 2]
    cfg = load_config(write("SOLVER: {BASE_LR: 0.5}"), opts)
    assert (cfg.SOLVER.BASE_LR, cfg.SEED) == (0.25, 2)
    assert load_config(None, {"SEED": "1"}) == load_config(None, ["SEED", 1])
    with pytest.raises(ConfigError, match="overrides is 'SEED=1': pass a dict of keys and values"):
        load_config(None, "SEED=1")
    with pytest.raises(ConfigError, match=r"pairs KEY VALUE: 'SOLVER\.GAMMA' has no value"):
        load_config(None, ["SEED", 1, "SOLVER.GAMMA"])


# ---- unknown keys


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("SOLVER.BASE_LRR", "SOLVER.BASE_LR"),
        ("SOLVER.base_lr", "SOLVER.BASE_LR"),
        ("MODEL.WEIGHTS", "MODEL.WEIGHT"),
        ("BASE_LR", "SOLVER.BASE_LR"),
        ("MODEL.FCOS.NUM_CONVS", ""),
        ("MODEL.ROI_BOX_HEAD.LOSS_WEIGHTS", ""),
        ("NORM", ""),  # of several sections
        ("Q" * 100_000, ""),
    ],
)
def test_unknown_key_suggests_only_a_similar_one(name, nearest):
    with pytest.raises(ConfigError) as error:
        load_config(None, [name, 1])
    suggestion = f" (did you mean {nearest}?)" if nearest else ""
    advice = "Declare keys of your own in a file of IMPORTS, see docs/extending.md"
    assert str(error.value) == f"overrides: unknown config key {name}{suggestion}. {advice}"


def test_all_unknown_keys_of_a_file_are_listed(write):
    keys = ", ".join(f"KEY_{number}: 1" for number in range(1000))
    first = r"unknown config keys MODEL\.OWN\.KEY_0, MODEL\.OWN\.KEY_1, .*"
    with pytest.raises(ConfigError, match=first + r"OWN\.KEY_99 and 900 more\. Declare"):
        load_config(write(f"MODEL: {{OWN: {{{keys}}}}}"))


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("VERSION: 2\nMODEL: {MASK_ON: true}", "detectron2"),
        ("MODEL: {PROPOSAL_GENERATOR: {NAME: RPN}}", "detectron2"),
        ("names: [a]\nnc: 1", "YOLO's data.yaml"),
        ("epochs: 100\nimgsz: 640", "ultralytics"),
        ("images: []\nannotations: []", "an annotation file"),
        ("_BASE_: base.yaml\nVERSION: 2", ""),  # the unknown key is in the base
    ],
)
def test_files_of_other_programs(write, text, program):
    write("SOLVR: {MAX_ITER: 3}", "base.yaml")
    message = f". This is .*{program}" if program else r"base\.yaml: unknown config key SOLVR"
    with pytest.raises(ConfigError, match=message):
        load_config(write(text))


# ---- types


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("SOLVER.BASE_LR", 1, 1.0),
        ("SOLVER.BASE_LR", "1e-4", 1e-4),
        ("SOLVER.MAX_ITER", "70", 70),
        ("SEED", 2**62, 2**62),
        ("SOLVER.STEPS", "(10, 20)", (10, 20)),
        ("SOLVER.STEPS", [10, 20], (10, 20)),
        ("SOLVER.STEPS", "[10, 20]", (10, 20)),
        ("SOLVER.STEPS", "()", ()),
        ("INPUT.MIN_SIZE_TRAIN", 800, (800,)),
        ("INPUT.PIXEL_MEAN", (1, 2, 3), [1, 2, 3]),
        ("DATASETS.TRAIN", "coco_train", ("coco_train",)),
        ("DATASETS.TRAIN", '("a", "b")', ("a", "b")),
        ("DATASETS.TRAIN", "[a, b]", ("a", "b")),
        ("DATASETS.TRAIN", "[a, b", ("[a, b",)),
        ("DATASETS.KEYPOINT_FLIP_PAIRS", "[[ojo 1, ojo 2]]", [["ojo 1", "ojo 2"]]),
        ("MODEL.MASK_ON", "True", True),
        ("MODEL.MASK_ON", "false", False),
        ("OUTPUT_DIR", 7, "7"),
        ("OUTPUT_DIR", Path("a/b"), "a/b"),
        ("DATASETS.TRAIN", [Path("a")], ("a",)),
        ("MODEL.RPN.ANCHOR_SIZES", "((8, 16), (32, 64))", ((8, 16), (32, 64))),
        ("MODEL.RPN.ANCHOR_SIZES", [[8, 16], [32, 64]], ((8, 16), (32, 64))),
        ("DATASETS.CATALOG", '[{"name": "x"}]', [{"name": "x"}]),
    ],
)
def test_value_is_converted_to_the_type_of_the_key(name, given, expected):
    cfg = load_config(None, [name, given])
    value = value_of(cfg, name)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("SOLVER.BASE_LR", ["fast", True, [0.1], None], "float (learning rate"),
        ("SOLVER.MAX_ITER", [1.5, True], "int (run length"),
        ("MODEL.MASK_ON", [1, "maybe"], "bool (predict instance masks)"),
        ("MODEL.RPN.USE_FPN", ["maybe"], "bool (restates"),
        ("OUTPUT_DIR", [["a"], True, None], "str (folder"),
        ("SOLVER.STEPS", [{"a": 1}, True], "tuple (multistep"),
        ("DATASETS.TRAIN", [""], "tuple (names"),
    ],
)
def test_wrong_type_names_key_value_and_description(name, values, expected):
    for value in values:
        with pytest.raises(ConfigError) as error:
            load_config(None, [name, value])
        message = f"{name} is {value!r} ({type(value).__name__}), but must be {expected}"
        assert f"overrides: {message}" in str(error.value)


# ---- ranges


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("SOLVER.BASE_LR", 0.0, "greater than 0"),
        ("SOLVER.BASE_LR", float("nan"), "greater than 0"),
        ("SOLVER.MOMENTUM", 1.0, "at least 0, below 1"),
        ("SOLVER.WEIGHT_DECAY", -1e-4, "at least 0"),
        ("SOLVER.BASE_LR", float("inf"), "finite"),
        ("SOLVER.MAX_MINUTES", float("inf"), "greater than 0, at most 1e+09"),
        ("MODEL.ROI_BOX_HEAD.NUM_CLASSES", 1, "at least 2"),
        ("MODEL.BACKBONE.FREEZE_CONV_BODY_AT", 6, "from 0 to 5"),
        ("MODEL.RESNETS.TRANS_FUNC", "BottleneckWithLN", "one of 'BottleneckWithFixedBatchNorm'"),
        *(("SEED", seed, "from 0 to") for seed in (-1, 2**63, 2**64)),
        ("DTYPE", "float64", "one of 'auto', 'float32', 'float16', 'bfloat16'"),
        *(
            ("SOLVER.STEPS", steps, "increasing iterations, or increasing fractions of the run")
            for steps in ((-1,), ("a",), (80, 60), (60, 60), (0.5, 80))
        ),
        ("MODEL.RPN.ASPECT_RATIOS", ("a",), "a sequence of numbers, not 'a'"),
        ("INPUT.PIXEL_STD", [1.0, 2.0, 0.0], "values greater than 0"),
        ("INPUT.MIN_SIZE_TRAIN", (), "at least one value"),
        ("INPUT.VALUE_RANGE", (5, 1), "pairs of numbers in order"),
        ("MODEL.RPN.ANCHOR_SIZES", (), "positive sizes"),
        ("MODEL.RPN.ANCHOR_SIZES", (32, 0), "positive sizes"),
        ("MODEL.RPN.ANCHOR_SIZES", ((32,), ()), "positive sizes"),
        ("MODEL.ROI_HEADS.BBOX_REG_WEIGHTS", (10, 10, 5), "4 values"),
        ("DATASETS.TRAIN", (1,), "a sequence of strings"),
        ("DATASETS.CATALOG", ["coco"], "a list of mappings"),
        ("DATASETS.CATALOG", [{"annotations": "a.json"}], "a list of mappings"),
        ("TEST.EXPECTED_RESULTS", [("bbox", "AP", 0.4)], "a list of rows such as [bbox"),
        ("TEST.EXPECTED_RESULTS", [("bbox", "AP", (0.4, -1))], "a list of rows such as [bbox"),
        ("TEST.EXPECTED_RESULTS", [(1, "AP", (0.4, 0.1))], "a list of rows such as [bbox"),
    ],
)  # fmt: skip
def test_invalid_value_names_valid_ones(name, value, expected):
    with pytest.raises(ConfigError) as error:
        load_config(None, [name, value])
    assert f"overrides: {name} is {value!r}, but must be {expected}" in str(error.value)


# ---- paths


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$FOLDER_A/x", "/data/x"),
        ("${FOLDER_A:-other}/x", "/data/x"),
        ("${UNSET:-../other}/x", "../other/x"),
        ("${EMPTY:-other}/x", "other/x"),
        ("~/x", "/home/me/x"),
        ("${UNSET}/x", r"'\$\{UNSET\}/x' needs the environment variable UNSET"),
        ("~no-such-user/x", r"^'~no-such-user/x': "),
        ("~\0/x", r"^'~.*x': "),
    ],
)
def test_expand_path(monkeypatch, text, expected):
    for name, value in (("FOLDER_A", "/data"), ("EMPTY", ""), ("HOME", "/home/me")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("UNSET", raising=False)
    if "'" in expected:
        with pytest.raises(ConfigError, match=expected):
            expand_path(text)
    else:
        assert str(expand_path(text)) == expected


# ---- the resolved config


@pytest.mark.parametrize(
    "opts",
    [
        (),
        ("MODEL.BACKBONE.CONV_BODY", "R-18-FPN", "MODEL.MASK_ON", True),
        ("MODEL.RESNETS.TRANS_FUNC", "BottleneckWithGN"),
        ("MODEL.RPN.ANCHOR_SIZES", "((8, 16), (32, 64))"),
        ("DATASETS.CATALOG", [{"name": "a", "annotations": "a.json", "images": "b"}]),
        ("SOLVER.BASE_LR", 1e-7, "SOLVER.STEPS", ()),
        ("OUTPUT_DIR", "123"),
    ],
)
def test_resolved_config_loads_again_and_is_equal(write, opts):
    cfg = load_config(None, opts)
    again = load_config(write(cfg.dump()))
    assert again == cfg
    assert yaml.safe_load(again.dump()) == yaml.safe_load(cfg.dump())


def test_included_configs_are_found_by_name_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cfg = load_config("coco/mask_rcnn_R_50_FPN_1x.yaml")
    assert cfg.MODEL.MASK_ON
    (tmp_path / "mine.yaml").write_text("_BASE_: coco/mask_rcnn_R_50_FPN_1x.yaml\nSEED: 5\n")
    assert load_config("mine.yaml") == load_config("coco/mask_rcnn_R_50_FPN_1x.yaml", ["SEED", 5])
    (tmp_path / "demo_shapes.yaml").write_text("SEED: 7\n")  # the local file takes precedence
    assert load_config("demo_shapes.yaml").SEED == 7
    assert load_config("demo_shapes.yaml").MODEL.BACKBONE == load_config().MODEL.BACKBONE


def test_setting_a_run_length_unsets_the_others(write):
    def lengths(*args):
        solver = load_config(*args).SOLVER
        return [solver.MAX_ITER, solver.MAX_EPOCHS, solver.MAX_MINUTES]

    write("SOLVER: {MAX_ITER: 100}\n", "base.yaml")
    leaf = write("_BASE_: base.yaml\nSOLVER: {MAX_MINUTES: 15}\n")
    assert lengths() == [40000, None, None]
    assert lengths(leaf) == [None, None, 15.0]
    assert lengths(leaf, ["SOLVER.MAX_EPOCHS", "12"]) == [None, 12.0, None]
    assert lengths(leaf, ["SOLVER.MAX_ITER", "7"]) == [7, None, None]
    assert load_config(write(load_config(leaf).dump(), "again.yaml")) == load_config(leaf)
