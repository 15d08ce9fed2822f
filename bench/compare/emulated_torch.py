"""The worker of PyTorch with emulated formats: models whose field "recipe" names one of RECIPES are converted.

qtorch (QPyTorch) compiles its kernels at its first import. mx (microxcaling) runs as plain PyTorch on a CPU.
"""

import torch.nn.functional as F
import torch_worker
from torch import nn


def microxcaling(layer):
    """x, W and dy in e4m3, blocks of 32 with e8m0 scales, in all three products."""
    import mx

    specs = mx.finalize_mx_specs({"w_elem_format": "fp8_e4m3", "a_elem_format": "fp8_e4m3", "scale_bits": 8,
                                  "block_size": 32, "custom_cuda": False})
    if isinstance(layer, nn.Linear):
        return mx.Linear(layer.in_features, layer.out_features, mx_specs=specs)
    return mx.Conv2d(layer.in_channels, layer.out_channels, layer.kernel_size, padding=layer.padding, mx_specs=specs)


class Qpytorch(nn.Module):
    """x, W and dy rounded to e4m3 without scales, each once."""

    def __init__(self, layer, rounding):
        from qtorch import FloatingPoint
        from qtorch.quant import Quantizer

        super().__init__()
        self.layer, e4m3 = layer, FloatingPoint(exp=4, man=3)
        self.operand = Quantizer(forward_number=e4m3, forward_rounding=rounding)
        self.error = Quantizer(backward_number=e4m3, backward_rounding=rounding)

    def forward(self, x):
        x, w, layer = self.operand(x), self.operand(self.layer.weight), self.layer
        linear = isinstance(layer, nn.Linear)
        return self.error(F.linear(x, w, layer.bias) if linear else F.conv2d(x, w, layer.bias, padding=layer.padding))


RECIPES = {"fp32": lambda layer: layer, "mxfp8": microxcaling, "e4m3": lambda layer: Qpytorch(layer, "nearest"),
           "e4m3:stochastic": lambda layer: Qpytorch(layer, "stochastic")}
plain = torch_worker.build


def build(spec):
    model = plain(spec)
    for name, layer in list(model.named_children()):
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            setattr(model, name, RECIPES[spec.get("recipe", "fp32")](layer))
    return model


if __name__ == "__main__":
    torch_worker.build = build
    torch_worker.main()
