"""What is compared: the models and ops, their goals, and the machine's peaks that ops are held against."""

import math

SGD = {"kind": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 0}


def _mlp(widths, batch):
    return {"kind": "mlp", "widths": widths, "input": [widths[0]], "classes": widths[-1], "batch": batch,
            "optimizer": SGD}


# "goal": the least speed-up over the better peer.
MODELS = {
    "mlp_small": {**_mlp([64, 128, 128, 10], 32), "goal": {"f32": 4, "bf16": 4}},
    "mlp_medium": {**_mlp([784, 512, 512, 10], 128), "goal": {"f32": 1, "bf16": 1.25}},
    "mlp_large": {**_mlp([784, 2048, 2048, 10], 1024), "goal": {"f32": 1, "bf16": 1.25}},
    # conv 32, conv 64 (3x3, padding 1), each with batch norm, ReLU and a 2x2 max pool; linear
    "cnn": {"kind": "cnn", "input": [1, 28, 28], "classes": 10, "batch": 64,
            "optimizer": {"kind": "adamw", "lr": 1e-3, "weight_decay": 0.01}, "goal": {"f32": 1.5, "bf16": 1.5}},
    # ResNet-20 (He et al. 2016), with 1x1 convolutions where the shape changes
    "resnet_small": {"kind": "resnet", "input": [3, 32, 32], "classes": 10, "widths": [16, 32, 64], "blocks": 3,
                     "batch": 64, "optimizer": {"kind": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 1e-4},
                     "goal": {"f32": 1, "bf16": 1}},
    # pre-norm, learned positions, GELU, causal attention, head without bias
    "gpt_small": {"kind": "gpt", "input": [128], "classes": 256, "width": 256, "heads": 8, "layers": 4, "batch": 8,
                  "optimizer": {"kind": "adamw", "lr": 1e-3, "weight_decay": 0.01}, "goal": {"f32": 1, "bf16": 1}},
}
# On a GPU. "goal": as above, against PyTorch's eager mode in its fastest setting; "compiled": against torch.compile.
GPU_MODELS = {
    # the educational two-layer MLP of README.md's first example, at its full size
    "mlp_seed": {**_mlp([784, 8192, 10], 8192), "goal": {"f16": 1.3}, "compiled": {"f16": 1.0}},
    "mlp_large": {**_mlp([784, 2048, 2048, 10], 1024), "goal": {}},
    "cnn": {**MODELS["cnn"], "batch": 512, "goal": {"bf16": 1}},
    "resnet_small": {**MODELS["resnet_small"], "batch": 512, "goal": {}},
    "gpt2_small": {"kind": "gpt", "input": [1024], "classes": 50304, "width": 768, "heads": 12, "layers": 12,
                   "batch": 8, "optimizer": {"kind": "adamw", "lr": 3e-4, "weight_decay": 0.1}, "goal": {"bf16": 1}},
}
# bf16 autocast against Gradual's f32
PRECISION_GOALS = {"mlp_large": 1.7, "gpt_small": 1.3}

# f16, bf16: autocast around forward and loss; f16 with a dynamic loss scale
PRECISIONS = ("f32", "tf32", "f16", "bf16")
DEFAULT_PRECISIONS = {"cpu": ("f32", "bf16"), "cuda": ("f32", "tf32", "f16", "bf16")}

# Built before the measured model, so that memory for a framework's first use does not count as the model's.
WARM_UP = {**_mlp([4, 4, 2], 2), "precision": "f32"}


def _square(n):
    return {"op": "matmul", "sizes": [n, n, n], "work": 2 * n**3}


def _linear(batch, inputs, outputs):
    return {"op": "linear", "sizes": [batch, inputs, outputs], "work": 2 * batch * inputs * outputs}


def _conv(batch, inputs, outputs, size):  # forward and both gradients, 3x3
    return {"op": "conv2d", "sizes": [batch, inputs, outputs, size],
            "work": 3 * 2 * batch * inputs * outputs * size**2 * 9}


def _rows(op, rows, columns):
    # beyond the caches, yet below the 32 MiB from which malloc asks the system for fresh pages at every call
    return {"op": op, "dtype": "f32", "sizes": [rows, columns], "work": 8 * rows * columns, "peak": "stream"}


def _both(name, spec, goals=(None, None)):
    for dtype, goal in zip(("f32", "bf16"), goals):
        yield f"{name}_{dtype}", {**spec, "dtype": dtype, "peak": dtype, "goal": goal}


_N = 16 << 20
# "work": FLOP, or bytes read and written, per step; "peak": the rate of the machine to compare with; "goal": the least
# share of that peak.
OPS = {
    **dict(_both("matmul_1024", _square(1024), (0.90, 0.88))),
    **dict(_both("matmul_512", _square(512))),
    **dict(_both("linear_1024x2048x2048", _linear(1024, 2048, 2048))),
    **dict(_both("conv2d_64x32x64x14", _conv(64, 32, 64, 14))),
    "cast_f32_f16": {"op": "cast", "dtype": "f16", "sizes": [_N], "work": 6 * _N, "peak": "stream_add",
                     "goal": 0.8},
    "cast_f32_bf16": {"op": "cast", "dtype": "bf16", "sizes": [_N], "work": 6 * _N, "peak": "stream_add",
                     "goal": 0.8},
    "softmax_6144x1024": _rows("softmax", 6144, 1024),
    "layer_norm_6144x1024": _rows("layer_norm", 6144, 1024),
    # read: gradient 2, master 4, moments 8; written: parameter 2, master 4, moments 8
    "adamw_masters_8Mi": {"op": "adamw", "dtype": "bf16", "sizes": [8, 1024, 1024], "work": 28 * (8 << 20),
                          "peak": "stream", "goal": 0.8},
}

def _images(op, passes, sizes):  # forward and backward, of bf16; passes: over the input's elements
    return {"op": op, "dtype": "bf16", "sizes": sizes, "work": int(passes * 2 * math.prod(sizes))}


def _attention(batch, heads, length, size):  # causal, forward and backward: 2 and 5 products over half of the scores
    return {"op": "attention", "dtype": "bf16", "sizes": [batch, heads, length, size],
            "work": 7 * batch * heads * length**2 * size}


_G = 256 << 20
# Ops that a library and Gradual's own kernels both compute on a GPU: both are timed.
OWN_KERNELS = ("softmax", "batch_norm", "avg_pool2d", "attention")
# On a GPU: compared with PyTorch only. "ratio": the least speed-up.
GPU_OPS = {
    "matmul_8192_bf16": {**_square(8192), "dtype": "bf16", "ratio": 0.98},
    "matmul_8192_f16": {**_square(8192), "dtype": "f16"},
    "matmul_8192_f32": {**_square(8192), "dtype": "f32"},
    "linear_8192x784x8192_f16": {**_linear(8192, 784, 8192), "dtype": "f16"},
    "conv2d_256x64x64x56_bf16": {**_conv(256, 64, 64, 56), "dtype": "bf16"},
    "cast_f32_bf16": {"op": "cast", "dtype": "bf16", "sizes": [_G], "work": 6 * _G},
    "softmax_65536x1024": {"op": "softmax", "dtype": "f32", "sizes": [65536, 1024], "work": 8 * 65536 * 1024},
    "layer_norm_65536x1024": {"op": "layer_norm", "dtype": "f32", "sizes": [65536, 1024], "work": 8 * 65536 * 1024},
    "batch_norm_64x256x56x56": _images("batch_norm", 5, [64, 256, 56, 56]),
    "avg_pool2d_64x256x56x56": _images("avg_pool2d", 2.5, [64, 256, 56, 56]),
    "attention_8x16x2048x64": _attention(8, 16, 2048, 64),
    "adamw_masters_64Mi": {"op": "adamw", "dtype": "bf16", "sizes": [64, 1024, 1024], "work": 28 * (64 << 20)},
}
