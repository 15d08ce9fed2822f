#!/usr/bin/env python3
"""Writes torchao.csv: scales and codes of torchao's MX and NVFP4 on the CPU.

    pip install torch==2.15.0 torchao==0.18.0 && ./make_torchao.py

`block,ID,BITS ..` gives the 32 floats of a block as hexadecimal bits. `mx,ELEMENT,RULE,ID,SCALE,CODE ..` has the e8m0
scale and the codes of that block, `nvfp4,LEVELS,ID,SCALE SCALE,CODE ..` two blocks of 16 with one level of scales or
two. rceil blocks whose amax is within three f32 steps above a power of two times the element's largest value are left
out: torch.log2 rounds there (torchao's own GPU code does not).
"""

import pathlib

import numpy as np
import torch
from torchao.prototype.mx_formats.constants import DTYPE_FP6_E2M3, DTYPE_FP6_E3M2
from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx
from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale

ELEMENTS = {"e4m3fn": (torch.float8_e4m3fn, 448.0), "e5m2": (torch.float8_e5m2, 57344.0),
            "e2m3fn": (DTYPE_FP6_E2M3, 7.5), "e3m2fn": (DTYPE_FP6_E3M2, 28.0), "e2m1fn": (torch.float4_e2m1fn_x2, 6.0)}


def blocks():
    rng = np.random.default_rng(18)
    for exponent in (0, 0, 3, -9, 40, -60, 100, -110, -118, -122, -126, -130, 120, 126):
        yield (rng.normal(size=32) * 2.0**exponent).astype(np.float32)
    yield np.zeros(32, np.float32)
    for special in (np.inf, -np.inf, np.nan, 1e-45, 2.0**-126, 2.0**-120, 448.0, 449.0, 6.0, 7.0, 500.0, 3e38):
        block = (rng.normal(size=32) * min(1.0, abs(special) if np.isfinite(special) else 1.0)).astype(np.float32)
        block[3] = special
        yield block


def codes_of(data, element):
    data = data.view(torch.uint8).reshape(-1)
    if element == "e2m1fn":  # two codes per byte, the first in the low bits
        data = torch.stack([data & 15, data >> 4], 1).reshape(-1)
    return " ".join(f"{c:x}" for c in data.tolist())


def main():
    lines = []
    for number, block in enumerate(blocks()):
        lines.append(f"block,{number}," + " ".join(f"{b:x}" for b in block.view(np.uint32)))
        x = torch.from_numpy(block.copy()).reshape(1, 32)
        amax = float(np.max(np.abs(block)))
        for element, (dtype, largest) in ELEMENTS.items():
            for mode in ScaleCalculationMode:
                near = np.frexp(amax / largest)[0] if np.isfinite(amax) and amax > 0 else 0.75
                if mode == ScaleCalculationMode.RCEIL and 0.5 < near < 0.5 + 2e-7:
                    continue
                scale, data = to_mx(x, dtype, 32, mode)
                code = scale.view(torch.uint8).item()
                lines.append(f"mx,{element},{mode.value},{number},{code:x}," + codes_of(data, element))
        if np.isfinite(amax) and 1e-33 < amax < 1e38:  # below, torchao divides by a tensor scale that is not normal
            for levels, tensor in (("1", None), ("2", per_tensor_amax_to_scale(x.abs().max()))):
                scale, data = nvfp4_quantize(x, 16, tensor)
                codes = " ".join(f"{c:x}" for c in scale.view(torch.uint8).reshape(-1).tolist())
                lines.append(f"nvfp4,{levels},{number},{codes}," + codes_of(data, "e2m1fn"))
    pathlib.Path(__file__).with_name("torchao.csv").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
