"""Additions of users arrive where they are used if IMPORTS has their file; otherwise an error."""

from types import SimpleNamespace

import pytest

from detlite.config import ConfigError, load_config
from detlite.data.datasets.catalog import object_fields
from detlite.engine.hooks import build_hooks
from detlite.evaluation.evaluators import build_evaluators
from detlite.modeling.build import build_model
from tests.builders import tiny_config

_ENTRY = {"name": "own", "annotations": "a.json", "images": "b"}
_SET = SimpleNamespace(name="own", kind="coco")

# The settings, the code of the extension, where it arrives, and the error without the extension.
CASES = {
    "key": (
        {"OWN.SIZE": 2},
        "from detlite.config import Key, declare_keys\n"
        "declare_keys('OWN', {Key('SIZE', 1): 'a size'})\n",
        lambda cfg: cfg.OWN.SIZE,
        r"unknown config key OWN\.SIZE\. Declare keys of your own in a file of IMPORTS",
    ),
    "field": (
        {"DATASETS.CATALOG": [_ENTRY | {"fields": ["own-field"]}]},
        "from detlite.structures.object_fields import OBJECT_FIELDS, ObjectField\n"
        "@OBJECT_FIELDS.register('own-field')\n"
        "class Own(ObjectField): shape = ()\n",
        lambda cfg: object_fields(cfg, "own"),
        r"fields: unknown .*'own-field'.* IMPORTS",
    ),
    "hook": (
        {"SOLVER.HOOKS": "own-hook"},
        "from detlite.engine.hooks import HOOKS, Hook\n"
        "HOOKS.register('own-hook')(lambda cfg: Hook())\n",
        build_hooks,
        r"SOLVER\.HOOKS: unknown .*'own-hook'.* IMPORTS",
    ),
    "metric": (
        {"DATASETS.CATALOG": [_ENTRY | {"evaluators": ["own-metric"]}]},
        "from detlite.evaluation import EVALUATORS, Evaluator\n"
        "@EVALUATORS.register('own-metric')\n"
        "class Own(Evaluator):\n"
        "    def evaluate(self, cfg, dataset, results): return {}\n",
        lambda cfg: build_evaluators(cfg, _SET),
        r"evaluators: unknown .*'own-metric'.* IMPORTS",
    ),
    "detector": (
        {"MODEL.META_ARCHITECTURE": "own-detector", "MODEL.MASK_ON": False},
        "from detlite.modeling import META_ARCHITECTURES\n"
        "build = lambda cfg: META_ARCHITECTURES.get('ProposalNetwork')(cfg)\n"
        "META_ARCHITECTURES.register('own-detector')(build)\n",
        build_model,
        r"MODEL\.META_ARCHITECTURE: unknown detector 'own-detector'.* IMPORTS",
    ),
    "import": ({"IMPORTS": "no-file.py"}, "", None, r"IMPORTS: cannot import 'no-file\.py'"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_users_add_arrives_or_is_an_error(case, tmp_path):
    settings, code, arrives, error = CASES[case]
    settings = [item for pair in settings.items() for item in pair]
    with pytest.raises(ConfigError, match=error):
        arrives(tiny_config(*settings))
    if arrives is not None:
        file = tmp_path / f"own_{case}.py"
        file.write_text(code)
        cfg = tiny_config("IMPORTS", str(file), *settings)
        assert arrives(cfg)
        (tmp_path / "stored.yaml").write_text(cfg.dump())
        assert arrives(load_config(tmp_path / "stored.yaml"))
