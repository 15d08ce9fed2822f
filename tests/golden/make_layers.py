#!/usr/bin/env python3
"""Writes layers.json: results and gradients of layers and functions in PyTorch (CPU, float64), for
tests/nn/pytorch_layers_test.cpp.

    pip install torch && ./make_layers.py > layers.json

Inputs and parameters are numbers that both sides compute (`numbers`), input i with key i. A case has the sizes of its
inputs, the result, and the gradient of sum(result * cos(i + 1)) for each input.
"""
import json
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)


def numbers(shape, key):
    """From -1 to 1: the fraction of (i + 1)(key + 1) times 2654435761 / 2^32."""
    i = torch.arange(1, math.prod(shape) + 1, dtype=torch.int64)
    return (((i * (key + 1) * 2654435761) % 2**32).double() / 2**31 - 1).reshape(shape)


def recurrent(kind, layers, bias, state):
    """Inputs: x, the state if given (h, and c for an LSTM), then the parameters in PyTorch's order."""

    def run(x, *rest):
        h = rest[: state * (2 if kind is nn.LSTM else 1)]
        net = kind(x.shape[2], 3, layers, bias=bias, batch_first=True)
        names = [n for n, _ in net.named_parameters()]
        start = None if not h else tuple(h) if kind is nn.LSTM else h[0]
        out, last = torch.func.functional_call(net, dict(zip(names, rest[len(h) :])), (x, start) if h else (x,))
        last = torch.cat([t.reshape(-1) for t in last]) if kind is nn.LSTM else last.reshape(-1)
        return torch.cat([out.reshape(-1), last])

    gates = 4 if kind is nn.LSTM else 3
    shapes = [(2, 4, 5)] + [(layers, 2, 3)] * (state * (2 if kind is nn.LSTM else 1))
    for layer in range(layers):
        shapes += [(gates * 3, 5 if layer == 0 else 3), (gates * 3, 3)] + [(gates * 3,)] * (2 if bias else 0)
    return run, shapes


CLASSES = torch.tensor([2, 0, 1, 2])
CASES = {
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, 2, 3, 2, 2), [(2, 4, 9), (6, 2, 3), (6,)]),
    "conv_transpose2d": (lambda x, w, b: F.conv_transpose2d(x, w, b), [(2, 3, 4, 5), (3, 4, 3, 2), (4,)]),
    "conv_transpose2d options": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, (3, 2), (1, 2), (2, 1), 2, (1, 3)),
        [(2, 4, 4, 5), (4, 3, 3, 2), (6,)],
    ),
    "group_norm": (lambda x, w, b: F.group_norm(x, 3, w, b, 1e-4), [(2, 6, 3, 2), (6,), (6,)]),
    "lstm": recurrent(nn.LSTM, 1, True, False),
    "lstm two layers": recurrent(nn.LSTM, 2, False, True),
    "gru": recurrent(nn.GRU, 1, True, False),
    "gru two layers": recurrent(nn.GRU, 2, True, True),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, (3, 2)), [(2, 2, 7, 5)]),
    "nearest": (lambda x: F.interpolate(x, (5, 9), mode="nearest"), [(2, 2, 3, 4)]),
    "bilinear": (lambda x: F.interpolate(x, (5, 3), mode="bilinear", align_corners=False), [(2, 2, 3, 4)]),
    "cumsum": (lambda x: x.cumsum(1), [(2, 7, 3)]),
    "prod": (lambda x: x.prod(1), [(2, 7, 3)]),
    "prod of all": (lambda x: x.prod(), [(2, 3)]),
    "max": (lambda x: x.max(1).values, [(2, 7, 3)]),
    "max kept": (lambda x: x.max(-1, keepdim=True).values, [(2, 7, 3)]),
    "sort": (lambda x: x.sort(1).values, [(2, 7, 3)]),
    "sort descending": (lambda x: x.sort(0, descending=True).values, [(4, 7)]),
    "topk": (lambda x: x.topk(2, 1).values, [(2, 7, 3)]),
    "topk smallest": (lambda x: x.topk(3, -1, largest=False).values, [(2, 7)]),
    "huber_loss": (lambda x, y: F.huber_loss(x, y, reduction="none", delta=0.4), [(4, 5), (4, 5)]),
    "nll_loss": (lambda x: F.nll_loss(x, CLASSES), [(4, 3)]),
    "kl_div": (lambda q, p: F.kl_div(q, p.abs(), reduction="sum"), [(4, 3), (4, 3)]),
    "einsum bij,bjk->bik": (lambda a, b: torch.einsum("bij,bjk->bik", a, b), [(2, 3, 4), (2, 4, 5)]),
    "einsum bhqd,bkhd->bhqk": (lambda a, b: torch.einsum("bhqd,bkhd->bhqk", a, b), [(2, 2, 3, 4), (2, 5, 2, 4)]),
    "einsum ij,kl->ljki": (lambda a, b: torch.einsum("ij,kl->ljki", a, b), [(2, 3), (4, 2)]),
    "einsum aib,cb": (lambda a, b: torch.einsum("aib,cb", a, b), [(2, 3, 4), (5, 4)]),
    "einsum abc,ab->a": (lambda a, b: torch.einsum("abc,ab->a", a, b), [(2, 3, 4), (2, 3)]),
    "einsum abc->cb": (lambda a: torch.einsum("abc->cb", a), [(2, 3, 4)]),
    "einsum i,i": (lambda a, b: torch.einsum("i,i", a, b), [(5,), (5,)]),
}


def main():
    cases = {}
    for name, (function, shapes) in CASES.items():
        inputs = [numbers(s, i).requires_grad_() for i, s in enumerate(shapes)]
        out = function(*inputs)
        (out.reshape(-1) * torch.cos(torch.arange(1, out.numel() + 1.0))).sum().backward()
        cases[name] = {
            "sizes": shapes,
            "result": out.reshape(-1).tolist(),
            "gradients": [t.grad.reshape(-1).tolist() for t in inputs],
        }
    print(json.dumps({"torch": torch.__version__, "cases": cases}))


if __name__ == "__main__":
    main()
