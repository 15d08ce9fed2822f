"""The tables of a comparison, in Markdown."""

OURS = "Gradual"
COMPILED = "torch.compile"
OWN = "own kernels"
PEERS = ("PyTorch", "libtorch")


def durations(s):
    """Median (quartiles), in the unit of the median."""
    unit, scale = next(((u, x) for u, x in (("s", 1), ("ms", 1e3)) if s["median"] * x >= 1), ("us", 1e6))
    return "{:.4g} {} ({:.4g}-{:.4g})".format(s["median"] * scale, unit, s["q1"] * scale, s["q3"] * scale)


def size(count):
    return "n/a" if count is None else f"{count / 2**20:.1f}"


def rate(row, value):
    return f"{value / 1e9:.4g} {'GB/s' if row['bytes'] else 'GFLOP/s'}"


def spread(s, form="{:.2f}"):
    return f"{form.format(s['median'])} ({form.format(s['q1'])}-{form.format(s['q3'])})"


def verdict(value, goal, form="{:g}"):
    if goal is None:
        return ""
    return f"{form.format(goal)}: " + ("met" if value >= goal else "missed")


def table(header, rows):
    """Columns of equal width, so that the table is readable as text."""
    cells = [header, ["---"] * len(header)] + rows
    widths = [max(len(r[i]) for r in cells) for i in range(len(header))]
    pad = lambda c, w: c * (w // 3 + 1) if c == "---" else c.ljust(w)
    return "".join("| " + " | ".join(pad(c, w)[:max(w, 3)] for c, w in zip(r, widths)) + " |\n" for r in cells)


def _time(row, name):
    result = row["results"].get(name)
    if result is None:
        return "-"
    return durations(result["seconds"]) + (f" [{', '.join(result['variant'])}]" if result.get("variant") else "")


def _rate(row, name):
    return rate(row, row["results"][name]["rate"]["median"]) if name in row["results"] else "-"


def _better(row):
    if "better_peer" not in row:
        return "-"
    return f"{spread(row['ratios'][row['better_peer']])} x {row['better_peer']}"


def _compiled(row):
    if COMPILED not in row["results"]:
        return ["-", "-", ""]
    ratio = row["compiled"]
    return [_time(row, COMPILED), spread(ratio), verdict(ratio["median"], ratio["goal"])]


def _memory(row):
    def of(name):
        result = row["results"].get(name)
        return "-" if result is None else size(result["memory"]["resident"])
    ours = row["results"].get(OURS)
    counted = "-" if ours is None else size(ours["memory"]["allocator"])
    return [counted, " / ".join(of(name) for name in (OURS, *PEERS))]


def model_line(row):
    return (f"{row['model']} {row['precision']} {row['threads']}t: " +
            ", ".join(f"{name} {_time(row, name)}" for name in (OURS, *PEERS)) + f"; {_better(row)}")


def op_line(row):
    mine = row["results"].get(OURS, {})
    share = f", {100 * mine['share']['median']:.0f}% of the peak" if "share" in mine else ""
    speed = rate(row, mine["rate"]["median"]) if mine else "failed"
    return f"{row['op']} {row['threads']}t: {speed}{share}; {_better(row)}"


def _models(rows):
    header = ["model", "precision", "threads", OURS, *PEERS, "times the better peer", "goal", "peak MiB",
              "resident MiB"]
    body = [[r["model"], r["precision"], str(r["threads"]), *(_time(r, name) for name in (OURS, *PEERS)), _better(r),
             verdict(r["ratio"], r["goal"]) if "ratio" in r else "", *_memory(r)] for r in rows]
    return "## A training step\n\n" + table(header, body) + (
        "\nMedian (quartiles) of a step: gradients dropped, forward, loss, backward, update. The ratio is of the "
        "rounds' pairs: how many\ntimes faster Gradual is than the faster peer. In brackets: which of its own settings "
        "a peer was fastest with. Peak memory: bytes\nthat Gradual's allocator counted at once; resident: how far the "
        "process's resident memory rose, for Gradual / PyTorch / libtorch.\n")


def _gpu_models(rows):
    header = ["model", "precision", OURS, "PyTorch", "times faster", "goal", COMPILED, "times faster", "goal",
              "peak MiB, Gradual / PyTorch"]
    body = [[r["model"], r["precision"], _time(r, OURS), _time(r, "PyTorch"),
             spread(r["ratios"]["PyTorch"]) if r.get("ratios") else "-",
             verdict(r["ratio"], r["goal"]) if "ratio" in r else "", *_compiled(r),
             " / ".join(size(r["results"][n]["memory"]["allocator"]) if n in r["results"] else "-"
                        for n in (OURS, "PyTorch"))] for r in rows]
    return "## A training step on the GPU\n\n" + table(header, body) + (
        "\nMedian (quartiles) of a step: gradients dropped, forward, loss, backward, update; many steps between two "
        "waits for the GPU. In\nbrackets: which of its own settings PyTorch was fastest with, in eager mode; "
        "torch.compile has the same. Peak memory: bytes that\nthe framework's allocator counted at once.\n")


def _memory_ratios(rows):
    """Gradual's peak bytes of fp32 relative to each other precision."""
    peaks = {(r["model"], r["precision"]): r["results"][OURS]["memory"]["allocator"] for r in rows
             if OURS in r["results"]}
    body = [[m, p, f"{peaks[m, 'f32'] / peak:.2f}"] for (m, p), peak in peaks.items()
            if p != "f32" and peak and peaks.get((m, "f32"))]
    return "## Peak memory, f32 to the others, Gradual\n\n" + table(["model", "precision", "times less"], body)


def _gpu_ops(rows):
    header = ["op", OURS, OWN, "PyTorch", "times faster", "goal"]
    body = [[r["op"], *(_rate(r, n) for n in (OURS, OWN, "PyTorch")),
             spread(r["ratios"]["PyTorch"]) if r.get("ratios") else "-",
             verdict(r["ratio"], r["ratio_goal"]) if "ratio" in r else ""] for r in rows]
    return "## Single ops on the GPU\n\n" + table(header, body) + (
        "\nOwn kernels: Gradual's, in place of the library's. batch_norm, avg_pool2d and attention are forward and "
        "backward.\n")


def _gains(rows):
    body = [[r["model"], str(r["threads"]), spread(r), verdict(r["median"], r["goal"])] for r in rows]
    return "## bf16 autocast against f32, Gradual\n\n" + table(["model", "threads", "times faster", "goal"], body)


def _ops(rows):
    header = ["op", "threads", OURS, "share of the peak", "goal", "peak", *PEERS, "times the better peer"]
    body = []
    for r in rows:
        cells = [_rate(r, n) for n in (OURS, *PEERS)]
        share = r["results"].get(OURS, {}).get("share")
        top = f"{rate(r, r['peak_rate']['median'])} ({r['peak_rate']['how']})" if "peak_rate" in r else "unknown"
        body.append([r["op"], str(r["threads"]), cells[0], spread(share, "{:.0%}") if share else "-",
                     verdict(share["median"], r["goal"], "{:.0%}") if share else "", top, *cells[1:], _better(r)])
    return "## Single ops\n\n" + table(header, body) + (
        "\nShares are of what the machine did at most in the same rounds: multiply-adds in registers, or bytes read "
        "and written in loops\nover arrays that exceed the caches: a copy or, for casts to half, an addition, which "
        "reads two bytes for one written as they do. conv2d\nis forward and both gradients; adamw has bf16 "
        "parameters and f32 masters, which the peers do as an\nf32 AdamW between two conversions.\n")


def _heading(found):
    m, s = found["machine"], found["settings"]
    lines = [f"# Gradual against PyTorch, {found['date']}", "",
             f"Commit {found['commit']}. {m['cpu']} ({m['family']}; {', '.join(m['extensions']) or 'no AVX2'}), "
             f"{m['cores']} cores{' of a virtual machine' if m['virtual'] else ''}, {m['system']}.", ""]
    for name, hello in found["frameworks"].items():
        known = ("compiler", "backend", "onednn", "python", "blas", "gpu")
        facts = [f"{key} {hello[key]}" for key in known if hello.get(key)]
        lines.append(f"- {name} {hello['version']}" + (f" ({', '.join(facts)})" if facts else ""))
    lines += [f"- {name}: not compared, {reason}" for name, reason in found["absent"].items()]
    lines += ["", f"{s['rounds']} rounds of {s['round_seconds']:g} s each, in turn."]
    if s["clock"] == "cpu":
        lines.append("With one thread the times are processor times of the worker, not the clock's.")
    if s["environment"]:
        lines.append("Gradual's environment: " + ", ".join(f"{k}={v}" for k, v in s["environment"].items()) +
                     ("; the peers' too." if s["same_environment"] else "; the peers have OpenMP's own settings."))
    if found["meanwhile"]:
        busy = found["meanwhile"]
        lines.append(f"Meanwhile other programs took {busy['others']:.0%} of the processors' time, other guests of the "
                     f"host {busy['stolen']:.0%}.")
    return "\n".join(lines) + "\n"


def markdown(found):
    parts = [_heading(found)]
    gpu = found["settings"]["device"] == "cuda"
    if found["models"]:
        parts.append((_gpu_models if gpu else _models)(found["models"]))
    if gpu and found["models"]:
        parts.append(_memory_ratios(found["models"]))
    if found["precision_gains"]:
        parts.append(_gains(found["precision_gains"]))
    if found["ops"]:
        parts.append((_gpu_ops if gpu else _ops)(found["ops"]))
    if found["problems"]:
        parts.append("## Problems\n\n" + "".join(f"- {p}\n" for p in found["problems"]))
    return "\n".join(parts)
