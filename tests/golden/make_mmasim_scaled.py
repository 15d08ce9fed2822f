#!/usr/bin/env python3
"""Writes mmasim_scaled.csv: block-scaled dot products as RTX Blackwell adds them up, by MMA-Sim (arXiv 2511.10909).

    pip install torch==2.15.0 mmasim==2.1.1 && ./make_mmasim_scaled.py

A line has the operands' format, the scales', the block, the first state of a linear congruential generator, and the
bits of the f32 sums: 64 dot products of length 128. The generator gives, for a and then for b, the codes and then the
codes of the scales. Masks leave out Inf and NaN.
"""

import pathlib

import numpy as np
import torch
from mmasim.nv_ptx.sim import MMABlockScale

COUNT, LENGTH = 64, 128
MASKS = {"e4m3fn": 0xF7, "e5m2": 0xBF, "e3m2fn": 0x3F, "e2m3fn": 0x3F, "e2m1fn": 0x0F}
CASES = [
    ("e4m3fn", "e8m0fnu", 32, "m16n8k32.kind::mxf8f6f4.block32.f32.e4m3.e4m3.f32.ue8m0"),
    ("e5m2", "e8m0fnu", 32, "m16n8k32.kind::mxf8f6f4.block32.f32.e5m2.e5m2.f32.ue8m0"),
    ("e3m2fn", "e8m0fnu", 32, "m16n8k32.kind::mxf8f6f4.block32.f32.e3m2.e3m2.f32.ue8m0"),
    ("e2m3fn", "e8m0fnu", 32, "m16n8k32.kind::mxf8f6f4.block32.f32.e2m3.e2m3.f32.ue8m0"),
    ("e2m1fn", "e8m0fnu", 32, "m16n8k64.kind::mxf4.block32.f32.e2m1.e2m1.f32.ue8m0"),
    ("e2m1fn", "e4m3fn", 16, "m16n8k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.f32.ue4m3"),
]


def words(state):
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        yield state >> 33


def bytes_of(draw, shape, of):
    return np.array([of(next(draw)) for _ in range(int(np.prod(shape)))], np.uint8).reshape(shape)


def operand(draw, name, scales, block, unit):
    codes = bytes_of(draw, (COUNT, LENGTH), lambda word: word & MASKS[name])
    if unit.k == 64:
        codes = codes[:, 0::2] << 4 | codes[:, 1::2]
    x = torch.from_numpy(codes)
    if name in ("e4m3fn", "e5m2"):
        x = x.view(unit.a_type)
    of_scale = (lambda word: 117 + word % 21) if scales == "e8m0fnu" else (lambda word: word & 0x77)
    factor = torch.from_numpy(bytes_of(draw, (COUNT, LENGTH // block), of_scale)).view(unit.s_type)
    return x, factor


def main():
    lines = []
    for i, (name, scales, block, instruction) in enumerate(CASES):
        unit = MMABlockScale("RTX Blackwell", instruction)
        draw = words(i + 1)
        (a, scale_a), (b, scale_b) = (operand(draw, name, scales, block, unit) for _ in range(2))
        sums = torch.zeros(COUNT)
        for k in range(0, LENGTH, unit.k):
            operands = (a, b, scale_a, scale_b)
            part = [x[:, k * x.shape[1] // LENGTH : (k + unit.k) * x.shape[1] // LENGTH] for x in operands]
            sums = unit.dpa(part[0], part[1], sums, part[2], part[3])
        raw = sums.numpy().view(np.uint32)
        lines.append(f"{name},{scales},{block},{i + 1}," + " ".join(f"{v:x}" for v in raw))
    pathlib.Path(__file__).with_name("mmasim_scaled.csv").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
