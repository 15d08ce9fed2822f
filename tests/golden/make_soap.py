#!/usr/bin/env python3
"""Writes soap.json: weights after steps of the SOAP authors' program (CPU, float64), for soap_test.cpp.

Run with torch 2.9 or newer, and soap.py of github.com/nikhilvyas/SOAP beside it: python3 make_soap.py > soap.json
The weight w[i] = sin(i) starts each case; the gradient of step t (from 1) is g[i] = cos(0.37 i^2 + 1.3 t (i + 1)).
The program computes its bases in float32; here it does so in float64, so that the figures have all digits.
"""
import json

import torch
from soap import SOAP

torch.set_default_dtype(torch.float64)
torch.Tensor.float = torch.Tensor.double
STEPS = 14


def case(shape, frequency, largest):
    n = 1
    for size in shape:
        n *= size
    i = torch.arange(0.0, n)
    w = torch.sin(i).reshape(shape).requires_grad_()
    optimizer = SOAP([w], lr=0.01, betas=(0.9, 0.95), weight_decay=0.1, precondition_frequency=frequency,
                     max_precond_dim=largest)
    for t in range(1, STEPS + 1):
        w.grad = torch.cos(0.37 * i * i + 1.3 * t * (i + 1)).reshape(shape)
        optimizer.step()
    return {"shape": list(shape), "precondition_frequency": frequency, "max_precond_dim": largest,
            "weight": [float(f"{v:.13g}") for v in w.detach().reshape(-1).tolist()]}


print(json.dumps({
    "torch": torch.__version__.split("+")[0], "script": "make_soap.py", "steps": STEPS,
    "cases": [case((5, 4), 3, 10000), case((4, 7), 2, 6), case((6, 6), 10, 10000), case((3, 2, 2, 3), 4, 10000),
              case((8,), 3, 10000)]}, indent=1))
