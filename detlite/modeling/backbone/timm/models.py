"""Create classifiers of timm, an optional package."""

from typing import Any


def create_timm_model(name: str, drop_path: float) -> Any:
    """Create a classifier of timm without its last layer, for images of any size if possible."""
    try:
        import timm
    except ImportError as error:
        raise ValueError(
            f"MODEL.BACKBONE.CONV_BODY names timm's {name}, but timm is not installed: "
            "pip install 'detlite[timm]'"
        ) from error
    if not timm.is_model(name):
        raise ValueError(
            f"MODEL.BACKBONE.CONV_BODY: timm {timm.__version__} has no model {name!r}; "
            "timm.list_models() lists them"
        )
    # Without dynamic_img_size, transformers accept images of one size only. drop_path_rate is
    # passed even if it is 0, because some models, such as Swin, have another default.
    any_size: dict[str, Any] = {"dynamic_img_size": True}
    depth: dict[str, Any] = {"drop_path_rate": drop_path}
    for options in (any_size | depth, depth, *(() if drop_path else (any_size, {}))):
        try:
            net = timm.create_model(name, num_classes=0, **options)
        except TypeError:  # the model does not have one of the options
            continue
        for module in net.modules():
            if hasattr(module, "strict_img_size"):  # of models with convolutional positions
                setattr(module, "strict_img_size", False)  # noqa: B010
        return net
    raise ValueError(
        f"MODEL.VIT.DROP_PATH is {drop_path}, but timm's {name} has no stochastic depth: "
        "set it to 0"
    )
