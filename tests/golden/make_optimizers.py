#!/usr/bin/env python3
"""Writes optimizers.json: weights after steps of PyTorch's optimizers (CPU, float64), for own_optimizer_test.cpp.

Run with torch 2.9 or newer: python3 make_optimizers.py > optimizers.json
The weight w[i] = sin(i) starts each case; the gradient of step t (from 1) is g[i] = cos(i + t).
PyTorch's Muon orthogonalises in bfloat16; here its iteration runs in float64, so that the figures have all digits.
"""
import json

import torch
import torch.optim._muon as muon

torch.set_default_dtype(torch.float64)
STEPS = 5


def newton_schulz(grad, coefficients, steps, eps):
    a, b, c = coefficients
    x = grad.T if grad.size(0) > grad.size(1) else grad
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if grad.size(0) > grad.size(1) else x


muon._zeropower_via_newtonschulz = newton_schulz


def case(name, shape, make):
    n = shape[0] * shape[1]
    w = torch.sin(torch.arange(0.0, n)).reshape(shape).requires_grad_()
    optimizer = make([w])
    for t in range(1, STEPS + 1):
        w.grad = torch.cos(torch.arange(0.0, n) + t).reshape(shape)
        optimizer.step()
    return {"name": name, "shape": list(shape), "weight": [float(f"{v:.12g}") for v in w.detach().reshape(-1).tolist()]}


print(json.dumps({
    "torch": torch.__version__.split("+")[0], "script": "make_optimizers.py", "steps": STEPS,
    "cases": [
        case("rmsprop", (3, 4), lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.9, eps=1e-8, weight_decay=0.1)),
        case("muon", (3, 4), lambda p: torch.optim.Muon(p, lr=0.02, momentum=0.95, weight_decay=0.1)),
        case("muon", (5, 2), lambda p: torch.optim.Muon(p, lr=0.02, momentum=0.95, weight_decay=0.1)),
    ]}, indent=1))
