#!/usr/bin/env python3
"""Compares the sums of matrix units with those of MMA-Sim (arXiv 2511.10909), case for case.

    pip install torch==2.15.0 numpy mmasim==2.1.1 && ./compare_mmasim.py build/release/bench/gradual-sums [WORD ...]

WORDs choose the instructions whose name or machine has one of them. A case is a dot product of two instructions'
numbers, at least 32, of one row of A with one of B, 1000 by 1000. Each group but the first adds to a sum other than
zero. Half of the rows are codes drawn at random, subnormal numbers among them, with exponents of at most 24 on either
side; half are normal numbers, each row with a factor of its own. Sums of one value are equal, whatever the sign of a
zero or the bits of a NaN.
"""

import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
from mmasim.arithmetic.helper import decode_uint8_to_fp6_fp4, unpack_uint8_to_fp4
from mmasim.amd.sim import MFMA
from mmasim.nv_ptx.sim import MMA, MMABlockScale

ROWS, PART = 1000, 20
F16, BF16, TF32 = torch.float16, torch.bfloat16, torch.float32
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
E4M3Z, E5M2Z = torch.float8_e4m3fnuz, torch.float8_e5m2fnuz

CASES = [  # accumulator, machine, its instruction, dtype of operands
    ("cdna1-fp16", "CDNA1", "f32_16x16x16f16", F16),
    ("cdna1-bf16", "CDNA1", "f32_16x16x8bf16", BF16),
    ("cdna2-fp16", "CDNA2", "f32_16x16x16f16", F16),
    ("cdna2-bf16", "CDNA2", "f32_16x16x8bf16", BF16),
    ("cdna2-bf16-1k", "CDNA2", "f32_16x16x16bf16_1k", BF16),
    ("cdna3-fp16/lowest=-14", "CDNA3", "f32_16x16x16_f16", F16),
    ("cdna3-fp16/lowest=-126", "CDNA3", "f32_16x16x16_bf16", BF16),
    ("cdna3-tf32/lowest=-126", "CDNA3", "f32_16x16x8_xf32", TF32),
    ("cdna3-fp8/lowest=-7", "CDNA3", "f32_16x16x32_fp8_fp8", E4M3Z),
    ("cdna3-fp8/lowest=-15", "CDNA3", "f32_16x16x32_bf8_bf8", E5M2Z),
    ("hopper-fp16/lowest=-14", "RTX Blackwell", "m16n8k16.f32.f16.f16.f32", F16),
    ("hopper-fp16/lowest=-126", "RTX Blackwell", "m16n8k16.f32.bf16.bf16.f32", BF16),
    ("hopper-tf32/lowest=-126", "RTX Blackwell", "m16n8k8.f32.tf32.tf32.f32", TF32),
    ("blackwell-fp8/lowest=-6", "RTX Blackwell", "m16n8k32.kind::f8f6f4.f32.e4m3.e4m3.f32", E4M3),
    ("blackwell-fp8/lowest=-14", "RTX Blackwell", "m16n8k32.kind::f8f6f4.f32.e5m2.e5m2.f32", E5M2),
]

SCALED = [  # operands, scales, block, instruction of RTX Blackwell
    ("e4m3fn", "e8m0fnu", 32, "m16n8k32.kind::mxf8f6f4.block32.f32.e4m3.e4m3.f32.ue8m0"),
    ("e5m2", "e8m0fnu", 32, "m16n8k32.kind::mxf8f6f4.block32.f32.e5m2.e5m2.f32.ue8m0"),
    ("e3m2fn", "e8m0fnu", 32, "m16n8k32.kind::mxf8f6f4.block32.f32.e3m2.e3m2.f32.ue8m0"),
    ("e2m3fn", "e8m0fnu", 32, "m16n8k32.kind::mxf8f6f4.block32.f32.e2m3.e2m3.f32.ue8m0"),
    ("e2m1fn", "e8m0fnu", 32, "m16n8k64.kind::mxf4.block32.f32.e2m1.e2m1.f32.ue8m0"),
    ("e2m1fn", "e8m0fnu", 16, "m16n8k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.f32.ue8m0"),
    ("e2m1fn", "e4m3fn", 16, "m16n8k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.f32.ue4m3"),
]
DTYPES = {"e4m3fn": E4M3, "e5m2": E5M2}


def codes_of(draw, dtype, count):
    """Finite numbers of random codes."""
    if dtype == TF32:
        raw = draw.integers(0, 1 << 19, count, np.uint32) << 13
        return torch.from_numpy(raw.view(np.float32).copy())
    bits = 8 * dtype.itemsize
    raw = draw.integers(0, 1 << bits, count, np.uint16).astype(np.uint8 if bits == 8 else np.uint16)
    return torch.from_numpy(raw.view(np.uint8 if bits == 8 else np.int16).copy()).view(dtype).float()


def operand(draw, dtype, length):
    codes = codes_of(draw, dtype, ROWS * length)
    if dtype in (BF16, TF32):
        codes = torch.ldexp(torch.frexp(codes).mantissa, torch.from_numpy(draw.integers(-24, 25, len(codes), np.int32)))
    codes = torch.nan_to_num(codes, 0, 0, 0).reshape(ROWS, length)
    factors = torch.from_numpy(np.exp2(draw.integers(-3, 4, (ROWS, 1))).astype(np.float32))
    gauss = torch.from_numpy(draw.standard_normal((ROWS, length), np.float32)) * factors
    if dtype == TF32:
        gauss = (gauss.view(torch.int32) >> 13 << 13).view(torch.float32)
    return torch.where(torch.arange(ROWS)[:, None] % 2 == 0, codes, gauss).to(dtype)


def scaled_operand(draw, name, unit, length):
    """As the unit takes it, and its values: all codes, and in half of the rows small ones only."""
    if name in DTYPES:
        x = operand(draw, DTYPES[name], length)
        return x, x.float()
    bits = 4 if name == "e2m1fn" else 6
    codes = draw.integers(0, 1 << bits, (ROWS, length), np.uint8)
    small = codes & ((1 << (bits - 1)) | 3)
    codes = np.where(np.arange(ROWS)[:, None] % 2 == 0, codes, small).astype(np.uint8)
    if unit.k == 64:
        packed = torch.from_numpy(codes[:, 0::2] << 4 | codes[:, 1::2])
        return packed, unpack_uint8_to_fp4(packed).float()
    x = torch.from_numpy(codes)
    return x, decode_uint8_to_fp6_fp4(x, unit.a_type_ptx).float()


def scales_of(draw, name, length, block):
    shape = (ROWS, length // block)
    if name == "e8m0fnu":
        return torch.from_numpy(draw.integers(107, 148, shape, np.uint8)).view(torch.float8_e8m0fnu)
    return torch.from_numpy(draw.integers(0, 127, shape, np.uint8)).view(E4M3)


def theirs(unit, length, a, b, scale_a=None, scale_b=None):
    def part(x, k, step):
        return x[:, k * x.shape[1] // length : (k + step) * x.shape[1] // length]

    sums = []
    for first in range(0, ROWS, PART):
        rows = slice(first, first + PART)
        c = torch.zeros(PART, ROWS)
        for k in range(0, length, unit.k):
            operands = [part(x, k, unit.k) for x in (a, b, scale_a, scale_b) if x is not None]
            across = [x[rows, None].expand(-1, ROWS, -1) if i % 2 == 0 else x[None].expand(PART, -1, -1)
                      for i, x in enumerate(operands)]
            c = unit.dpa(across[0], across[1], c, *across[2:])
        sums.append(c)
    return torch.cat(sums).numpy()


def ours(program, options, operands):
    with tempfile.TemporaryDirectory() as folder:
        paths = [pathlib.Path(folder) / str(i) for i in range(len(operands) + 1)]
        for x, path in zip(operands, paths):
            x.float().numpy().tofile(path)
        subprocess.run([program, *map(str, [*options, *paths])], check=True)
        return np.fromfile(paths[-1], np.float32).reshape(ROWS, ROWS)


def report(name, machine, instruction, got, wanted):
    differ = ~((got == wanted) | (np.isnan(got) & np.isnan(wanted)))
    counts = f"{got.size} | {differ.sum()} | {np.isnan(wanted).sum()}"
    print(f"| `{name}` | {machine} | `{instruction}` | {counts} |", flush=True)


def main():
    torch.set_num_threads(1)
    program, words = sys.argv[1], sys.argv[2:]
    chosen = lambda machine, instruction: not words or any(word in f"{machine} {instruction}" for word in words)
    print("| sums | machine | instruction | cases | not equal | NaN |\n|---|---|---|---|---|---|", flush=True)
    for number, (name, machine, instruction, dtype) in enumerate(CASES):
        if not chosen(machine, instruction):
            continue
        draw = np.random.default_rng(number)
        unit = (MFMA if machine.startswith("CDNA") else MMA)(machine, instruction)
        length = max(32, 2 * unit.k)
        a, b = (operand(draw, dtype, length) for _ in range(2))
        report(name, machine, instruction, ours(program, (name, length), (a, b)), theirs(unit, length, a, b))
    for number, (name, scales, block, instruction) in enumerate(SCALED):
        if not chosen("scaled", instruction):
            continue
        draw = np.random.default_rng(100 + number)
        unit = MMABlockScale("RTX Blackwell", instruction)
        length = 2 * unit.k
        (a, a_values), (b, b_values) = (scaled_operand(draw, name, unit, length) for _ in range(2))
        scale_a, scale_b = (scales_of(draw, scales, length, block) for _ in range(2))
        got = ours(program, (name, scales, length, block), (a_values, scale_a, b_values, scale_b))
        wanted = theirs(unit, length, a, b, scale_a, scale_b)
        report(f"block_scaled_matmul, {name}", "RTX Blackwell", instruction, got, wanted)


if __name__ == "__main__":
    main()
