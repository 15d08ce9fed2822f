#!/usr/bin/env python3
"""Asks gradual-lab judge about healthy steps of models with which it was not written (those of bench/import_check).

    python bench/judge/unseen.py build/release/gradual-lab --write    # writes bench/results/judge_unseen.md
"""

import argparse
import copy
import pathlib
import sys
import tempfile
import traceback

import torch

here = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(here))
import judge  # noqa: E402
import models as written_with  # noqa: E402
from record import record_step  # noqa: E402

sys.modules.pop("models")
sys.path.insert(0, str(here.parent / "import_check"))
import models  # noqa: E402
import models_more  # noqa: E402

ALL = {**models.MODELS, **models_more.MODELS}
NAMES = [
    "squeezenet1_0",
    "unet",
    "diffusion_unet",
    "lstm_tagger",
    "BertForSequenceClassification",
    "Qwen3ForCausalLM",
    "MixtralForCausalLM",
    "T5ForConditionalGeneration",
    "mobilenet_v3_small",
    "shufflenet_v2_x0_5",
]


class Called(torch.nn.Module):
    """The model with its named arguments in order; what it returns is its loss, or its first output."""

    def __init__(self, model, names):
        super().__init__()
        self.m, self.names = model, names

    def forward(self, *args):
        y = self.m(**dict(zip(self.names, args))) if self.names else self.m(*args)
        if isinstance(y, torch.Tensor):
            return y
        return (y.loss, y.logits) if hasattr(y, "loss") else y[0]


def made(name, seed):
    torch.manual_seed(seed)
    model, args, kwargs = ALL[name]()
    model = Called(models.without_randomness(model.train()), list(kwargs))
    return model, args or tuple(kwargs.values())


def judged(program, name, folder, seed):
    """Rows of the table, and the number of judgements and of false alarms."""
    model, args = made(name, seed)
    exported = folder / f"{name}.pt2"
    torch.export.save(torch.export.export(copy.deepcopy(model), args), exported)
    rows, count, alarms = [], 0, 0
    for setting, around, threads in judge.settings():
        if around is None:
            continue  # f64: PyTorch's hardsigmoid has a constant of f32 there
        own_model, record = copy.deepcopy(model), folder / "step.safetensors"
        torch.set_num_threads(threads)
        try:
            with around():
                record_step(own_model, args, written_with.loss_of, record)
        except RuntimeError as refused:  # recurrent layers in f16
            rows.append(f"| {name} | {setting} | PyTorch refuses: {str(refused).split('.')[0]} | | | |")
            continue
        finally:
            torch.set_num_threads(1)
        own = folder / "gradual.safetensors"
        records = [[record]] + ([[own]] if setting == "f32" else [])
        for files in records:
            more = ["--record", own] if files == [record] and setting == "f32" else []
            wrong, tensors, near = judge.judge(program, exported, files, *more)
            first = f"`{wrong[0]['tensor']}` ({wrong[0]['op']}) {float(wrong[0]['worst']):.3g}" if wrong else ""
            who = "Gradual, f32" if files == [own] else setting
            rows.append(f"| {name} | {who} | {tensors} | {len(wrong)} | {first} | {near:.2f} |")
            print(rows[-1], flush=True)
            count, alarms = count + 1, alarms + len(wrong)
    return rows, count, alarms


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--models", default=",".join(NAMES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write bench/results/judge_unseen.md")
    a = parser.parse_args()
    torch.set_num_threads(1)
    rows, count, alarms = [], 0, 0
    for name in a.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            try:
                more, judgements, wrong = judged(a.program, name, pathlib.Path(folder), a.seed)
            except Exception:
                traceback.print_exc()
                more, judgements, wrong = [f"| {name} | not judged | | | | |"], 0, 0
        rows, count, alarms = rows + more, count + judgements, alarms + wrong
    text = f"""# Healthy steps of models with which the judge was not written

`python bench/judge/unseen.py build/release/gradual-lab --write`, PyTorch {torch.__version__}, seed {a.seed}. The models
are those of `bench/import_check`, with random weights and without dropout. Each step is recorded with PyTorch, on one
thread and on two, with oneDNN and without, and under autocast; and once with Gradual in f32.

{count} judgements: {alarms} tensors were called wrong. The last column is the largest difference of an element over
what rounding explains, among the others: 1 would be called wrong.

| model | step | tensors | false alarms | the first | nearest |
|---|---|---:|---:|---|---:|
{chr(10).join(rows)}
"""
    if a.write:
        (here.parent / "results" / "judge_unseen.md").write_text(text)


if __name__ == "__main__":
    main()
