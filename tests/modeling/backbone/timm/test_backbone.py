import sys

import pytest
import torch

from detlite.config import ConfigError, load_config
from detlite.engine.solver import build_optimizer
from detlite.modeling.backbone import build_backbone
from detlite.modeling.backbone.timm.backbone import TimmBackbone
from detlite.modeling.build import build_model

NAME = "test_convnext"  # from timm's tests: widths of 24 to 96
# ConvNeXt, EfficientNet and Swin.
FAMILIES = [NAME, "test_efficientnet", "swin_tiny_patch4_window7_224"]


@pytest.fixture
def timm():
    return pytest.importorskip("timm", reason="timm is not installed")


# The last two have TensorFlow's padding for kernels of 3 to 9 cells.
@pytest.mark.parametrize(
    "name",
    [NAME, "test_resnet", "test_efficientnet", "resnet10t", "tf_efficientnet_lite0", "tf_mixnet_s"],
)
def test_maps_match_timm(timm, name):
    backbone = TimmBackbone(name, (4, 8, 16, 32)).eval()
    reference = timm.create_model(name, features_only=True, out_indices=(-4, -3, -2, -1)).eval()
    names = {path.replace(".", "_"): value for path, value in backbone.net.state_dict().items()}
    own = {path: names[path.replace(".", "_")] for path in reference.state_dict()}
    reference.load_state_dict(own)
    x = torch.randn(2, 3, 64, 96)
    maps = backbone(x)
    assert [(m.shape[1], 64 // m.shape[2], 96 // m.shape[3]) for m in maps] == [
        (channels, stride, stride)
        for channels, stride in zip(backbone.channels, (4, 8, 16, 32), strict=True)
    ]
    for ours, theirs in zip(maps, reference(x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES[:2])
def test_drop_path_of_timm_models(timm, tiny_config, name):
    opts = ["MODEL.BACKBONE.CONV_BODY", f"timm/{name}-FPN", "MODEL.VIT.DROP_PATH"]
    for value in (0.0, 0.3):
        model = build_model(tiny_config(*opts, value))
        rates = [m.drop_prob for m in model.modules() if isinstance(m, timm.layers.DropPath)]
        # The rate rises to the last block, or for an EfficientNet to the next one after it.
        assert value * 0.6 <= max(rates, default=0.0) <= value * 1.001


@pytest.mark.parametrize("body", [*(f"{name}-FPN" for name in FAMILIES), "test_vit-SFP"])
def test_learning_rates_decay_per_stage(timm, tiny_config, body):
    cfg = tiny_config(
        "MODEL.BACKBONE.CONV_BODY", f"timm/{body}", "SOLVER.LAYER_DECAY", 0.5,
        "SOLVER.BASE_LR", 1.0, "SOLVER.BIAS_LR_FACTOR", 1.0,
    )  # fmt: skip
    model = build_model(cfg)
    groups = build_optimizer(cfg, model).param_groups
    rates = {p: group["lr"] for group in groups for p in group["params"]}
    backbone = model.backbone.body
    layers = [{rates[p] for p in layer if p in rates} for layer in backbone.layers()]
    assert layers == [{0.5 ** (len(layers) - number)} for number in range(len(layers))]
    assert {p for layer in backbone.layers() for p in layer} == set(backbone.net.parameters())
    assert all(rates[parameter] == 1.0 for parameter in model.backbone.neck.parameters())


def test_without_timm(tiny_config, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    cfg = tiny_config("MODEL.BACKBONE.CONV_BODY", f"timm/{NAME}-FPN")
    with pytest.raises(ConfigError, match=rf"timm's {NAME}, but .*: pip install 'detlite\[timm\]'"):
        build_model(cfg)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "multiple"), [("test_maxvit", 320), ("halonet_h1", 256)])
def test_images_are_padded_to_windows(timm, name, multiple):
    backbone = TimmBackbone(name, (8, 32)).eval()
    assert backbone.padding_multiple == multiple
    with torch.no_grad():
        maps = backbone(torch.randn(1, 3, 45, multiple + 1))
    assert [tuple(m.shape[-2:]) for m in maps] == [
        (multiple // stride, 2 * multiple // stride) for stride in (8, 32)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["test_coatnet", "hiera_tiny_224", "mvitv2_tiny", "efficientformerv2_s0"]
)
def test_models_of_fixed_sizes_are_refused_when_built(timm, name):
    with pytest.raises(
        ValueError, match=rf"timm's {name} does not support images of any size"
    ) as e:
        TimmBackbone(name, (8, 32))
    assert "\n" not in str(e.value)


# Parts of the names of small models, the smallest first.
SMALL = ("test_", "atto", "femto", "pico", "nano", "xxs", "xxtiny", "tiny", "xs", "small", "_s0",
         "_0", "b0", "_035", "_050", "_t", "_s", "18", "11")  # fmt: skip


def small_model_of_each_family(timm) -> list[str]:
    """Return a small model of each of timm's modules that has one below 30 million parameters."""
    families: dict[str, list[str]] = {}
    for name in timm.list_models():
        families.setdefault(timm.models._registry._model_to_module[name], []).append(name)

    def size(name: str) -> tuple[int, int, str]:
        return next((i for i, part in enumerate(SMALL) if part in name), 99), len(name), name

    smallest = []
    for names in families.values():
        name = min(names, key=size)
        with torch.device("meta"):
            try:
                net = timm.create_model(name, num_classes=0)
            except Exception:  # some cannot be created without memory
                continue
        if sum(parameter.numel() for parameter in net.parameters()) < 30e6:
            smallest.append(name)
    return smallest


@pytest.mark.slow
def test_every_family_computes_maps_and_gradients_or_is_refused(timm):
    built, refused = [], []
    for name in small_model_of_each_family(timm):
        for ending in ("FPN", "C4", "C5", "SFP"):
            opts = ["MODEL.BACKBONE.CONV_BODY", f"timm/{name}-{ending}",
                    "MODEL.BACKBONE.FREEZE_CONV_BODY_AT", 0]  # fmt: skip
            try:
                backbone = build_backbone(load_config(None, opts))
            except ValueError as error:
                refused.append(f"{name}-{ending}: {error}")
                if "does not support images of any size" in str(error):
                    break  # with no ending
                continue
            backbone.to(memory_format=torch.channels_last)
            x = torch.rand(2, 3, 48, 72).contiguous(memory_format=torch.channels_last)
            maps = backbone(x)
            for stride, level in zip(backbone.strides, maps, strict=True):
                assert level.shape[2] >= -(-48 // stride), name
                assert level.shape[3] >= -(-72 // stride), name
            sum(level.square().mean() for level in maps).backward()
            assert any(parameter.grad is not None for parameter in backbone.parameters()), name
            built.append(name)
            break
    assert len(built) > 50
    assert all("\n" not in line for line in refused)
