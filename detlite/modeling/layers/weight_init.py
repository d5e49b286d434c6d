"""Initialize the weights of convolutions and linear layers."""

from torch import nn

Layer = nn.Linear | nn.Conv2d | nn.ConvTranspose2d


def init_normal(layer: Layer, std: float) -> None:
    """Draw Gaussian weights, zero the bias. For prediction layers."""
    nn.init.normal_(layer.weight, std=std)
    _zero_bias(layer)


def init_he(layer: Layer) -> None:
    """Draw Gaussian weights of variance 2 / fan-out, zero the bias. For layers before a ReLU."""
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    _zero_bias(layer)


def init_xavier(layer: Layer) -> None:
    """Draw uniform weights of variance 1 / fan-in (Caffe2's "Xavier"), zero the bias."""
    nn.init.kaiming_uniform_(layer.weight, a=1)
    _zero_bias(layer)


def _zero_bias(layer: Layer) -> None:
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
