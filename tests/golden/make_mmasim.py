#!/usr/bin/env python3
"""Writes mmasim.csv: dot products as tensor and matrix cores add them up, by MMA-Sim (arXiv 2511.10909).

    pip install torch==2.15.0 mmasim==2.1.1 && ./make_mmasim.py

A line has our accumulator's name, the operands' mantissa bits, lowest and highest exponent, the length of the dot
products, and the bits of the f32 (fp16-acc: f16) sums. The operands come from a linear congruential generator, here
and in the test: dot product after dot product, a then b, one number per element.
"""

import pathlib

import numpy as np
import torch
from mmasim.amd.sim import MFMA
from mmasim.nv_ptx.sim import MMA, WGMMA, TCGen05MMA

CASES = [  # accumulator, simulation, dtype, mantissa bits, exponents
    ("volta-fp16", lambda: MMA("Volta", "m8n8k4.f32.f16.f16.f32"), torch.float16, 10, -7, 8),
    ("ampere-fp16", lambda: MMA("Turing", "m16n8k8.f32.f16.f16.f32"), torch.float16, 10, -7, 8),
    ("ampere-fp16", lambda: MMA("Ampere", "m16n8k16.f32.bf16.bf16.f32"), torch.bfloat16, 7, -20, 20),
    ("ampere-fp16", lambda: MMA("Ada Lovelace", "m16n8k16.f32.f16.f16.f32"), torch.float16, 10, -7, 8),
    ("ampere-tf32", lambda: MMA("Ampere", "m16n8k8.f32.tf32.tf32.f32"), torch.float32, 10, -20, 20),
    ("hopper-fp16", lambda: WGMMA("Hopper", "m64n8k16.f32.f16.f16"), torch.float16, 10, -7, 8),
    ("hopper-fp16", lambda: TCGen05MMA("Blackwell", "m64n8k16.kind::f16.f32.bf16.bf16"), torch.bfloat16, 7, -20, 20),
    ("hopper-tf32", lambda: WGMMA("Hopper", "m64n8k8.f32.tf32.tf32"), torch.float32, 10, -20, 20),
    ("ada-fp8", lambda: MMA("Ada Lovelace", "m16n8k32.f32.e4m3.e4m3.f32"), torch.float8_e4m3fn, 3, -6, 7),
    ("hopper-fp8", lambda: WGMMA("Hopper", "m64n8k32.f32.e5m2.e5m2"), torch.float8_e5m2, 2, -14, 14),
    ("hopper-fp8", lambda: WGMMA("Hopper", "m64n8k32.f32.e4m3.e4m3"), torch.float8_e4m3fn, 3, -6, 7),
    ("blackwell-fp8", lambda: TCGen05MMA("Blackwell", "m64n8k32.kind::f8f6f4.f32.e4m3.e4m3"), torch.float8_e4m3fn, 3,
     -6, 7),
    ("fp16-acc/group=16/fraction=25", lambda: WGMMA("Hopper", "m64n8k16.f16.f16.f16"), torch.float16, 10, -9, 0),
    ("cdna1-fp16", lambda: MFMA("CDNA1", "f32_16x16x16f16"), torch.float16, 10, -7, 8),
    ("cdna1-bf16", lambda: MFMA("CDNA1", "f32_16x16x8bf16"), torch.bfloat16, 7, -20, 20),
    ("cdna2-fp16", lambda: MFMA("CDNA2", "f32_16x16x16f16"), torch.float16, 6, -18, -8),  # subnormal operands, too
    ("cdna2-bf16", lambda: MFMA("CDNA2", "f32_16x16x8bf16"), torch.bfloat16, 7, -70, -50),  # subnormal products, too
    ("cdna2-bf16-1k", lambda: MFMA("CDNA2", "f32_16x16x16bf16_1k"), torch.bfloat16, 7, -20, 20),
    ("cdna3-fp16", lambda: MFMA("CDNA3", "f32_16x16x16_f16"), torch.float16, 10, -7, 8),
    ("cdna3-fp16", lambda: MFMA("CDNA3", "f32_16x16x16_bf16"), torch.bfloat16, 7, -20, 20),
    ("cdna3-fp16/lowest=-14", lambda: MFMA("CDNA3", "f32_16x16x16_f16"), torch.float16, 6, -18, -12),
    ("cdna3-tf32", lambda: MFMA("CDNA3", "f32_16x16x8_xf32"), torch.float32, 10, -20, 20),
    ("cdna3-fp8", lambda: MFMA("CDNA3", "f32_16x16x32_fp8_fp8"), torch.float8_e4m3fnuz, 3, -6, 6),
    ("cdna3-fp8", lambda: MFMA("CDNA3", "f32_16x16x32_bf8_bf8"), torch.float8_e5m2fnuz, 2, -14, 14),
    ("hopper-fp16", lambda: MMA("RTX Blackwell", "m16n8k16.f32.f16.f16.f32"), torch.float16, 10, -7, 8),
    ("hopper-tf32", lambda: MMA("RTX Blackwell", "m16n8k8.f32.tf32.tf32.f32"), torch.float32, 10, -20, 20),
    ("blackwell-fp8", lambda: MMA("RTX Blackwell", "m16n8k32.kind::f8f6f4.f32.e5m2.e5m2.f32"), torch.float8_e5m2, 2,
     -14, 14),
    ("blackwell-fp8/lowest=-14", lambda: MMA("RTX Blackwell", "m16n8k32.kind::f8f6f4.f32.e5m2.e5m2.f32"),
     torch.float8_e5m2, 0, -16, 2),
]
LENGTH, COUNT = 96, 60


def numbers(count, bits, low, high, seed):
    """One in 32 is zero."""
    states = numbers_states(count, seed)
    mantissa = (states >> np.uint64(40)) & np.uint64((1 << bits) - 1)
    exponent = low + (((states >> np.uint64(33)) & np.uint64(127)) % np.uint64(high - low + 1)).astype(np.int64)
    value = np.ldexp(1 + mantissa.astype(np.float64) / 2**bits, exponent)
    value = np.where((states >> np.uint64(59)) == 0, 0, value)
    return np.where((states >> np.uint64(58)) & np.uint64(1), -value, value).astype(np.float32)


def numbers_states(count, seed):
    states, mask = [], (1 << 64) - 1
    state = seed
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) & mask
        states.append(state)
    return np.array(states, np.uint64)


def sums(make, dtype, x):
    """x: [count, 2, LENGTH]."""
    a, b = (torch.from_numpy(x[:, i].copy()).to(dtype) for i in (0, 1))
    simulated = make()
    c = torch.zeros(len(x), dtype=simulated.c_type)
    for k in range(0, LENGTH, simulated.k):
        c = simulated.dpa(a[:, k : k + simulated.k], b[:, k : k + simulated.k], c)
    return c.numpy()


def main():
    lines = []
    for i, (name, make, dtype, bits, low, high) in enumerate(CASES):
        x = numbers(COUNT * 2 * LENGTH, bits, low, high, 1000 * i + 1).reshape(COUNT, 2, LENGTH)
        found = sums(make, dtype, x)
        raw = found.view(np.uint16 if found.dtype == np.float16 else np.uint32)
        lines.append(f"{name},{bits},{low},{high},{LENGTH},{1000 * i + 1}," + " ".join(f"{v:x}" for v in raw))
    pathlib.Path(__file__).with_name("mmasim.csv").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
