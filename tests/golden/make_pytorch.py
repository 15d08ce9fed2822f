#!/usr/bin/env python3
"""Writes pytorch.json: values and gradients of PyTorch (CPU, float64), for tests/op_table/pytorch_test.cpp.

Run with any recent torch: python3 make_pytorch.py > pytorch.json
Each case has an op, its attributes, its inputs (row-major, with shapes; gradients are wanted of floats), the output and
the gradients of sum(output * weight) for the weight w[i] = cos(i + 1).
"""
import json

import torch
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
cases = []


def rounded(values):
    return [float(f"{v:.12g}") for v in values]


def tensor(t):
    if t is None:
        return None
    flat = t.detach().reshape(-1).tolist()
    if t.dtype == torch.bool:
        return {"dtype": "bool", "shape": list(t.shape), "data": [int(v) for v in flat]}
    if not t.is_floating_point():
        return {"dtype": "i64", "shape": list(t.shape), "data": flat}
    return {"dtype": "f64", "shape": list(t.shape), "data": rounded(flat)}


def case(op, attrs, inputs, f):
    # What is written is what is computed with: twelve digits.
    inputs = [None if t is None else torch.tensor(tensor(t)["data"], dtype=t.dtype).reshape(t.shape) for t in inputs]
    leaves = [t.requires_grad_() for t in inputs if t is not None and t.is_floating_point()]
    y = f(*inputs)
    weight = torch.cos(torch.arange(1.0, y.numel() + 1.0)).reshape(y.shape)
    (y * weight).sum().backward()
    cases.append({
        "op": op,
        "attrs": attrs,
        "inputs": [tensor(t) for t in inputs],
        "output": tensor(y),
        "gradients": [tensor(t.grad if t.grad is not None else torch.zeros_like(t)) for t in leaves],
    })


def randn(*shape):
    return torch.randn(*shape)


def conv(n, c, h, w, out, k, bias=True, stride=1, padding=0, dilation=1, groups=1):
    attrs = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    inputs = [randn(n, c, h, w), randn(out, c // groups, k, k), randn(out) if bias else None]
    case("conv2d", attrs, inputs, lambda x, weight, b: F.conv2d(x, weight, b, **attrs))


conv(2, 3, 5, 6, 4, 3)
conv(2, 2, 6, 5, 3, 3, stride=2, padding=1)
conv(1, 2, 8, 7, 2, 3, bias=False, padding=2, dilation=2)
conv(2, 4, 5, 4, 6, 3, padding=1, groups=2)
conv(1, 3, 5, 5, 3, 3, stride=2, padding=1, groups=3)

for shape, training in (((5, 3), True), ((2, 3, 3, 2), True), ((2, 3, 3, 2), False)):
    running = [randn(3).abs() + 0.5 for _ in range(2)]
    inputs = [randn(*shape), randn(3), randn(3)] + running
    case("batch_norm", {"training": training, "eps": 1e-5}, inputs,
         lambda x, w, b, m, v: F.batch_norm(x, m.detach().clone(), v.detach().clone(), w, b, training=training,
                                            eps=1e-5))

case("layer_norm", {"dims": 1, "eps": 1e-5}, [randn(4, 6), randn(6), randn(6)],
     lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b))
case("layer_norm", {"dims": 2, "eps": 1e-5}, [randn(2, 3, 4), randn(3, 4), None],
     lambda x, w, b: F.layer_norm(x, x.shape[-2:], w, b))
case("layer_norm", {"dims": 1, "eps": 1e-2}, [randn(3, 5), None, None],
     lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b, eps=1e-2))

for reduction in ("mean", "sum", "none"):
    for smoothing in (0.0, 0.1):
        for ignore in (-100, 2):
            attrs = {"reduction": reduction, "label_smoothing": smoothing, "ignore_index": ignore}
            case("cross_entropy", attrs, [randn(6, 4), torch.tensor([0, 2, 3, 1, 2, 0])],
                 lambda x, y: F.cross_entropy(x, y, **attrs))
attrs = {"reduction": "mean", "label_smoothing": 0.2, "ignore_index": 1}
case("cross_entropy", attrs, [randn(2, 3, 2, 2), torch.randint(0, 3, (2, 2, 2))],
     lambda x, y: F.cross_entropy(x, y, **attrs))

qkv = lambda: [randn(2, 2, 4, 3) for _ in range(3)]
case("sdpa", {"causal": False, "scale": 0}, qkv() + [None], lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v))
case("sdpa", {"causal": True, "scale": 0}, qkv() + [None],
     lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, is_causal=True))
case("sdpa", {"causal": False, "scale": 0.3}, qkv() + [randn(4, 4)],
     lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m, scale=0.3))
mask = torch.rand(2, 1, 4, 4) < 0.6
mask[..., 0] = True
case("sdpa", {"causal": False, "scale": 0}, qkv() + [mask],
     lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m))

case("embedding", {}, [randn(5, 3), torch.tensor([[1, 4, 1], [0, 0, 3]])], lambda w, i: F.embedding(i, w))
case("gelu", {"tanh": False}, [randn(3, 7) * 2], lambda x: F.gelu(x))
case("gelu", {"tanh": True}, [randn(3, 7) * 2], lambda x: F.gelu(x, approximate="tanh"))
for size in ((1, 1), (3, 2), (4, 7)):
    case("adaptive_avg_pool2d", {"size": list(size)}, [randn(2, 2, 5, 7)], lambda x: F.adaptive_avg_pool2d(x, size))
case("max_pool2d", {"kernel": 3, "stride": 2, "padding": 1}, [randn(2, 2, 5, 7)],
     lambda x: F.max_pool2d(x, 3, stride=2, padding=1))
case("avg_pool2d", {"kernel": 3, "stride": 2, "padding": 1}, [randn(2, 2, 5, 7)],
     lambda x: F.avg_pool2d(x, 3, stride=2, padding=1))
case("rms_norm", {"dims": 1, "eps": 1e-6}, [randn(4, 6), randn(6)],
     lambda x, w: F.rms_norm(x, x.shape[-1:], w, eps=1e-6))
case("softplus", {}, [randn(11) * 10], lambda x: F.softplus(x))
case("silu", {}, [randn(11) * 3], lambda x: F.silu(x))
case("bce_with_logits", {}, [randn(3, 4) * 3, torch.rand(3, 4)],
     lambda x, y: F.binary_cross_entropy_with_logits(x, y))
case("logsumexp", {}, [randn(3, 5)], lambda x: torch.logsumexp(x, 1))
case("var", {}, [randn(3, 5)], lambda x: torch.var(x, 1))
case("norm", {}, [randn(3, 5)], lambda x: torch.linalg.vector_norm(x, 3, 1))

header = {"torch": torch.__version__.split("+")[0], "script": "make_pytorch.py", "cases": len(cases)}
print("[" + json.dumps(header) + ",")
print(",\n".join(json.dumps(c) for c in cases) + "]")
