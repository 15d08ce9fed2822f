"""What PyTorch computes for an exported program: outputs, a loss, gradients and buffers, in f32 or f64."""

import torch
from torch.utils import _pytree


def _hardsigmoid(x):
    """By its formula: PyTorch's backward of hardsigmoid has 1/6 as an f32 constant, in f64 too."""
    return torch.clamp(x + 3, 0, 6) / 6


_EXACT = {torch.ops.aten.hardsigmoid.default: _hardsigmoid, torch.ops.aten.hardsigmoid_.default: _hardsigmoid}


def _as_double(module):
    """Turns every f32 in the graph's arguments and constants into f64."""
    for part in module.modules():
        for name, value in list(vars(part).items()):
            if isinstance(value, torch.Tensor) and value.dtype == torch.float32:
                setattr(part, name, value.double())
        graph = getattr(part, "graph", None)
        if not isinstance(graph, torch.fx.Graph):
            continue
        swap = lambda a: torch.float64 if a == torch.float32 else a
        for node in graph.nodes:
            node.target = _EXACT.get(node.target, node.target) if node.op == "call_function" else node.target
            node.args = _pytree.tree_map_only(torch.dtype, swap, node.args)
            node.kwargs = _pytree.tree_map_only(torch.dtype, swap, node.kwargs)
            if "_assert_tensor_metadata" in str(node.target):
                node.kwargs = {**node.kwargs, "dtype": None}
        part.recompile()
    return module.double()


def tensors_in(outputs):
    return [t for t in _pytree.tree_leaves(outputs) if isinstance(t, torch.Tensor)]


def _moved(module, seed):
    """Moves each weight to a neighbour in f32, or leaves it, by chance."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            if p.dtype == torch.float32:
                choice = torch.randint(-1, 2, p.shape, generator=generator)
                p.copy_(torch.where(choice == 0, p, torch.nextafter(p, choice.float() * float("inf"))))


def run(program, args, kwargs, cotangents=None, double=True, seed=0, moved=None):
    """The loss is the sum over the floating outputs of sum(output * cotangent). Returns named tensors. `moved`: the
    seed for moving each weight to a neighbour first."""
    default = torch.get_default_dtype()
    module = program.module(check_guards=False)
    if moved is not None:
        _moved(module, moved)
    if double:
        module = _as_double(module)
        torch.set_default_dtype(torch.float64)
        wide = lambda t: t.double() if t.is_floating_point() else t
        args, kwargs = _pytree.tree_map_only(torch.Tensor, wide, (args, kwargs))
    try:
        outputs = tensors_in(module(*args, **kwargs))
    finally:
        torch.set_default_dtype(default)
    generator = torch.Generator().manual_seed(seed)
    if cotangents is None:
        cotangents = [
            torch.randn(o.shape, generator=generator) if o.is_floating_point() and o.requires_grad else None
            for o in outputs
        ]
    loss = sum((o * c.to(o.dtype)).sum() for o, c in zip(outputs, cotangents) if c is not None)
    named = {f"output.{i}": o.detach().contiguous().clone() for i, o in enumerate(outputs)}
    named.update({f"cotangent.{i}": c for i, c in enumerate(cotangents) if c is not None})
    if isinstance(loss, torch.Tensor) and loss.requires_grad:
        loss.backward()
        named["loss"] = loss.detach().clone()
    for name, p in module.named_parameters(remove_duplicate=False):
        if p.grad is not None:
            named["grad." + name] = p.grad.contiguous().clone()
    persistent = set(program.graph_signature.buffers) - set(program.graph_signature.non_persistent_buffers)
    for name, b in module.named_buffers():
        if name in persistent:
            named["buffer." + name] = b.detach().contiguous().clone()
    return named
