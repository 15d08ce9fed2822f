#!/usr/bin/env python3
"""Everything that only a GPU can prove, in one call: CUDA tests, compute-sanitizer, the lab, benchmarks beside PyTorch.

`./dev gpu-check` builds and calls this. Stages run one after the other while there is time; each is reported, also
where it failed or was left out. The status is 0 where all ran and passed. Writes OUT.json (every number) and OUT.md
(for people), anew after each stage, so that a run which is cut off leaves what it found.
"""

import argparse
import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "compare"))

import machine  # noqa: E402

# Rows whose kernels use cooperating threads, write through indices or have special edges: sanitizers check these.
SANITIZED_ROWS = "add,sum,mean,argmax,softmax,log_softmax_backward,layer_norm,layer_norm_backward,batch_norm," \
    "batch_norm_backward,batch_norm_update_,slice_backward,fill_,cross_entropy,cross_entropy_backward,max_pool2d," \
    "max_pool2d_backward,gather,index_add,scatter_add,cat,dropout"
# Rows that NVIDIA's kernels compute, or Gradual's kernels without shared memory.
LIBRARY_ROWS = "matmul,linear,conv2d,flash_attention,flash_attention_backward"


def say(text):
    print(f"==> {text}", file=sys.stderr, flush=True)


def outcome(command, seconds, environment):
    """Status (0, another number, or words) and output of a command. A time-out ends it with all its children."""
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   encoding="utf-8", errors="replace", start_new_session=True, env=environment)
    except OSError as problem:
        return str(problem), ""
    try:
        output, _ = process.communicate(timeout=seconds)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return "cut off: the time was up", process.communicate()[0] or ""
    except BaseException:  # Ctrl-C reaches only this session
        os.killpg(process.pid, signal.SIGKILL)
        raise


class Check:
    def __init__(self, args, report):
        self.args = args
        self.report = report
        self.end = time.monotonic() + args.seconds - args.built_in
        self.stages = report["stages"]

    def left(self):
        return self.end - time.monotonic()

    def run(self, name, command, least=10, environment=None):
        """Runs a command as a stage and returns its output; None if it failed or there was no time."""
        if self.left() < least:
            return self.note(name, "not run: the time was up (the next call finds the build done)")
        say(name)
        start = time.monotonic()
        status, output = outcome(command, self.left(), {**os.environ, **(environment or {})})
        if status == 0 and re.search(r"test cases:\s+0 \|", output):
            status = "no test has that name"
        self.stages.append({"stage": name, "status": "passed" if status == 0 else f"failed ({status})",
                            "seconds": round(time.monotonic() - start, 1), "command": " ".join(command),
                            "output": output[-20000:]})
        say(f"{name}: {self.stages[-1]['status']}, {self.stages[-1]['seconds']:.0f} s")
        if status != 0:
            print(output[-3000:], file=sys.stderr)
        self.write()
        return output if status == 0 else None

    def note(self, name, status):
        self.stages.append({"stage": name, "status": status})
        say(f"{name}: {status}")
        self.write()

    def leave_out(self, name, reason):
        self.note(name, f"left out: {reason}")

    def write(self):
        for path, text in ((".json", json.dumps(self.report, indent=1) + "\n"), (".md", markdown(self.report))):
            with open(self.args.out + path, "w", encoding="utf-8") as file:
                file.write(text)

    def built(self, *path):
        return os.path.join(self.args.build, *path)


def gpu_facts():
    fields = ["name", "driver_version", "memory.total", "compute_cap"]
    try:
        run = subprocess.run(["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"],
                             capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as problem:
        sys.exit(f"gpu-check: nvidia-smi: {problem}")
    first = run.stdout.strip().splitlines()
    if run.returncode != 0 or not first:
        sys.exit(f"gpu-check: nvidia-smi shows no GPU: {run.stdout}{run.stderr}".rstrip())
    return dict(zip(fields, [field.strip() for field in first[0].split(",")]))


def sanitize(check, tool):
    name = f"compute-sanitizer {tool}"
    program = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.path.exists(program):
        return check.leave_out(name, "no compute-sanitizer on this machine")
    # memcheck checks all kernels; the other tools cannot follow the synchronisation of NVIDIA's, and report errors
    ours, rows = ["--kernel-name", "kns=gradual"], SANITIZED_ROWS
    if tool == "memcheck":
        ours, rows = [], f"{SANITIZED_ROWS},{LIBRARY_ROWS}"
    # the program checks the results of CUDA calls itself, and libraries may try calls that fail
    check.run(name, [program, "--tool", tool, *ours, "--report-api-errors", "no", "--error-exitcode", "9",
                     check.built("tests", "test_op_table"),
                     "-tc=CUDA agrees with the float64 references in every layout"],
              environment={"GRADUAL_TEST_OP": rows, "GRADUAL_TEST_LAYOUTS": "contiguous,strided",
                           "GRADUAL_TEST_NEEDS_GPU": "1"})
    if "Device not supported" in check.stages[-1].get("output", ""):  # inside some virtual machines
        check.stages.pop()
        check.leave_out(name, "it does not support this device")


def pytorch(seconds):
    """This interpreter if it has PyTorch with CUDA and answers in time; else the reason."""
    python = os.environ.get("GRADUAL_PYTHON", sys.executable)
    probe = "import torch; assert torch.cuda.is_available(), 'torch sees no GPU'"
    status, output = outcome([python, "-c", probe], max(seconds, 0), dict(os.environ))
    words = [status] if isinstance(status, str) else output.strip().splitlines()
    return (python, "") if status == 0 else (None, words[-1] if words else "it does not start")


def benchmarks(check, quick):
    found = check.report["benchmarks"]
    python, why = pytorch(min(120, check.left()))
    for kind in ("ops", "models"):
        path, table = f"{check.args.out}-{kind}.json", f"{check.args.out}-{kind}.md"
        for old in (path, table):  # left by an interrupted run
            if os.path.exists(old):
                os.remove(old)
        command = [sys.executable, os.path.join(HERE, "compare", "compare.py"), "--device", "cuda", f"--{kind}", "all",
                   "--rounds", "3" if quick else "5", "--round-seconds", "0.1" if quick else "0.25",
                   "--gradual", check.built("bench", "compare", "gradual-compare"), "--json", path,
                   "--out", table]
        command += ["--torch-python", python] if python else ["--absent", f"pytorch={why}"]
        if kind == "models" and quick:
            command += ["--precisions", "f32,f16,bf16"]
        check.run(f"benchmark: {kind}", command, least=30, environment={"PYTHONDONTWRITEBYTECODE": "1"})
        for name, place, read in ((kind, path, json.load), (kind + "_table", table, lambda file: file.read())):
            if not os.path.exists(place):
                continue  # the stage says why
            try:
                with open(place, encoding="utf-8") as file:
                    found[name] = read(file)
                os.remove(place)
            except (OSError, ValueError) as problem:
                say(f"{place}: {problem}")
        check.write()


def markdown(report):
    gpu = report["gpu"]
    text = (f"# CUDA on {gpu['name']}, {report['date']}\n\nCommit {report['commit']}; driver {gpu['driver_version']}, "
            f"compute capability {gpu['compute_cap']}, {gpu['memory.total']}.\n\n"
            "| stage | status | seconds |\n|---|---|---|\n")
    for stage in report["stages"]:
        text += f"| {stage['stage']} | {stage['status']} | {stage.get('seconds', '')} |\n"
    for name in ("seed", "lab", "gradients"):
        if report.get(name):
            text += f"\n## {report[name]['title']}\n\n```\n{report[name]['text'].strip()}\n```\n"
    for kind in ("models_table", "ops_table"):
        body = report["benchmarks"].get(kind, "")
        text += "\n" + body[body.find("\n## ") + 1:] if "\n## " in body else ""
    return text


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--build", required=True, help="the build folder")
    p.add_argument("--out", required=True, help="path of the report without its ending")
    p.add_argument("--seconds", type=float, default=530, help="for all stages and the build")
    p.add_argument("--built-in", type=float, default=0, help="seconds that the build took of these")
    p.add_argument("--quick", action="store_true", help="shorter benchmarks")
    args = p.parse_args()
    report = {"gpu": gpu_facts(), "date": datetime.date.today().isoformat(), "commit": machine.commit(HERE),
              "machine": machine.describe(), "stages": [], "benchmarks": {}}
    check = Check(args, report)
    on_gpu = {"GRADUAL_TEST_NEEDS_GPU": "1"}  # otherwise tests pass without a GPU
    check.run("tests of CUDA", [check.built("tests", "test_cuda")], environment=on_gpu)
    check.run("op table, CUDA against the references", [check.built("tests", "test_op_table"), "-tc=*CUDA*"],
              environment=on_gpu)
    seed = check.run("mixed_precision_from_scratch, full size", [
        check.built("examples", "mixed_precision_from_scratch"), "--device", "cuda", "--full", "--data", "random"])
    report["seed"] = seed and {"title": "The two-layer MLP, 784-8192-10, batches of 8192", "text": seed}
    lab = check.run("the lab on digits", [check.built("gradual-lab"), "--device", "cuda", "--epochs", "3", "--quiet",
                                          "--out", check.built("gpu-lab")])
    report["lab"] = lab and {"title": "The lab: digits, 3 epochs", "text": lab}
    benchmarks(check, args.quick)
    gain = check.run("gradients of weight and bias in one op", [
        sys.executable, os.path.join(HERE, "compare", "separate_gradients.py"),
        check.built("bench", "compare", "gradual-compare")], least=60)
    report["gradients"] = gain and {"title": "A step with two ops for the gradients of weight and bias, divided by one",
                                    "text": gain}
    for tool in ("memcheck", "racecheck", "synccheck"):
        sanitize(check, tool)
    check.write()
    print(markdown(report))
    say(f"written: {args.out}.json and {args.out}.md")
    return 0 if all(stage["status"] == "passed" for stage in check.stages) else 1


if __name__ == "__main__":
    sys.exit(main())
