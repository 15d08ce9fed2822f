"""Runs the driver on tiny rounds: python3 compare_test.py PATH/gradual-compare. Needs no torch; peers are played by
this very file (--play), which answers as a worker would, with times that are known."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from workers import Worker, WorkerError  # noqa: E402
from workloads import MODELS, OPS, PRECISIONS  # noqa: E402

GRADUAL = None


def play(parameters, runs):
    """A peer whose every step takes 1 ms by its own account. It dies before run number `runs`, if that is not 0."""
    count = 0
    for line in sys.stdin:
        request = json.loads(line)
        count += request["do"] == "run"
        if runs and count == runs:
            sys.exit("no memory is left")
        reply = {"hello": {"framework": "libtorch", "version": "0", "variants": ["fused"]},
                 "model": {"parameters": parameters, "data": -69.94116597669199},
                 "run": {"seconds": 1e-3 * request.get("steps", 0), "cpu": 1e-3 * request.get("steps", 0), "loss": 1},
                 "memory": {"resident": 1 << 20, "allocator": None}}.get(request["do"], {})
        print(json.dumps(reply), flush=True)


def compare(*arguments):
    """The driver's status, its tables by the first cell of each row, and its JSON."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in ("out.md", "out.json")]
        run = subprocess.run(
            [sys.executable, os.path.join(HERE, "compare.py"), "--gradual", GRADUAL, "--threads", "1", "--rounds", "3",
             "--round-seconds", "0.01", "--out", paths[0], "--json", paths[1], *arguments],
            capture_output=True, text=True, timeout=400)
        if run.returncode == 2:
            return 2, run.stderr, None
        with open(paths[0]) as text, open(paths[1]) as numbers:
            markdown, found = text.read(), json.load(numbers)
    assert run.stdout == markdown, run.stdout
    return run.returncode, markdown, found


def rows(markdown):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in markdown.splitlines()
            if line.startswith("|")]


class Emulation(unittest.TestCase):
    def run_it(self, *arguments):
        run = subprocess.run(
            [sys.executable, os.path.join(HERE, "emulation.py"), "--gradual", GRADUAL, "--networks", "MLP",
             "--rounds", "1", "--round-seconds", "0.001", *arguments], capture_output=True, text=True, timeout=400)
        return run.returncode, run.stdout, run.stderr

    def test_ratios_to_our_own_fp32(self):
        status, text, errors = self.run_it("--recipes", "mxfp8,fp16-acc")
        self.assertEqual(status, 0, errors)
        header, _, *steps = rows(text)
        self.assertEqual(header, ["network", "recipe", "ms", "ratio", "median", "counting", "peak memory"])
        self.assertEqual([r[1] for r in steps], ["fp32", "mxfp8", "fp16-acc"])
        for name, goal, ratio in (("mxfp8", 1.4, steps[1][3]), ("fp16-acc", 20, steps[2][3])):
            found, said = float(ratio.split()[0]), ratio.split("(")[1]
            self.assertGreater(found, 1, name)
            self.assertEqual(said, f"{goal:g}: {'met' if found <= goal else 'missed'})")
        self.assertIn("pytorch is not compared: not asked for (--peers)", text)

    def test_an_interrupted_call_goes_on(self):
        with tempfile.TemporaryDirectory() as folder:
            kept = os.path.join(folder, "kept.json")
            status, _, errors = self.run_it("--recipes", "fp16-acc", "--kept", kept)
            self.assertEqual(status, 0, errors)
            with open(kept) as file:
                first = json.load(file)["units"]["MLP"]["Gradual fp32 False"]
            status, _, errors = self.run_it("--recipes", "fp16-acc", "--kept", kept, "--resume", "--rounds", "2")
            self.assertEqual(status, 0, errors)
            self.assertIn("MLP: round 2 of 2", errors)
            with open(kept) as file:
                both = json.load(file)["units"]["MLP"]["Gradual fp32 False"]
            self.assertEqual((both[:1], len(both)), (first, 2))

    def test_an_absent_peer_is_named(self):
        status, text, errors = self.run_it("--recipes", "e4m3", "--torch-python", "no-such-python")
        self.assertEqual(status, 0, errors)
        self.assertIn("QPyTorch is not compared: no-such-python does not start", text)

    def test_names(self):
        status, _, errors = self.run_it("--recipes", "mxfp7")
        self.assertEqual(status, 2)
        self.assertIn("no 'mxfp7'; there are fp8-delayed, ", errors)


class Driver(unittest.TestCase):
    def test_our_own_steps(self):
        status, text, found = compare("--models", "mlp_small", "--peers", "none")
        self.assertEqual(status, 0, text)
        header, _, *steps = rows(text)[:4]
        self.assertEqual(header[:4], ["model", "precision", "threads", "Gradual"])
        self.assertEqual([r[:3] for r in steps], [["mlp_small", "f32", "1"], ["mlp_small", "bf16", "1"]])
        self.assertTrue(all(len(r) == len(header) for r in rows(text)[:4]))
        self.assertEqual(set(found["absent"]), {"PyTorch", "libtorch"})
        for row in found["models"]:
            result = row["results"]["Gradual"]
            self.assertEqual(result["parameters"], 64 * 128 + 128 + 128 * 128 + 128 + 128 * 10 + 10)
            self.assertEqual(len(result["seconds"]["rounds"]), 3)
            self.assertGreater(result["seconds"]["median"], 0)
            self.assertGreater(result["memory"]["allocator"], 4 * result["parameters"])
            self.assertLess(result["loss"][1], result["loss"][0])
            self.assertNotIn("ratio", row)
        self.assertEqual([g["model"] for g in found["precision_gains"]], ["mlp_small"])

    def test_ops_are_held_against_the_peak(self):
        status, text, found = compare("--ops", "matmul_512_f32,matmul_512_bf16", "--peers", "none")
        self.assertEqual(status, 0, text)
        self.assertEqual([r["op"] for r in found["ops"]], ["matmul_512_f32", "matmul_512_bf16"])
        self.assertEqual([len(r) for r in rows(text)], [9] * 4)
        for row in found["ops"]:
            rates = row["results"]["Gradual"]["rate"]
            times = row["results"]["Gradual"]["seconds"]
            self.assertAlmostEqual(rates["median"] * times["median"] / (2 * 512**3), 1)
            if "peak_rate" in row:  # not every CPU has one that is known
                self.assertGreater(row["results"]["Gradual"]["share"]["median"], 0)

    def test_a_peer_that_is_not_there_is_named(self):
        status, text, found = compare("--models", "mlp_small", "--precisions", "f32", "--libtorch", "/no/such/worker",
                                      "--absent", "pytorch=the moon is full")
        self.assertEqual(status, 0, text)
        self.assertIn("- PyTorch: not compared, the moon is full", text)
        self.assertIn("- libtorch: not compared, /no/such/worker does not start", text)
        self.assertEqual(found["models"][0]["results"].keys(), {"Gradual"})

    def with_peer(self, parameters, *arguments, runs=0):
        with tempfile.NamedTemporaryFile("w", suffix=".sh", delete=False) as script:
            script.write(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" --play {parameters} {runs}\n')
        os.chmod(script.name, 0o700)
        try:
            return compare("--models", "mlp_small", "--precisions", "f32", "--libtorch", script.name, *arguments)
        finally:
            os.unlink(script.name)

    def test_ratios_are_of_the_rounds(self):
        _, text, found = self.with_peer(26122)
        row = found["models"][0]
        ours = sorted(1e-3 / t for t in row["results"]["Gradual"]["seconds"]["rounds"])
        self.assertAlmostEqual(row["ratio"], ours[1], places=9)
        self.assertEqual(row["better_peer"], "libtorch")
        self.assertIn("1 ms (1-1)", text)
        # its loss stands still
        self.assertEqual(found["problems"], ["mlp_small f32, 1 thread: libtorch's loss went from 1 to 1"])

    def test_unlike_models_are_a_problem(self):
        status, text, _ = self.with_peer(26121)
        self.assertEqual(status, 1)
        self.assertIn("libtorch has 26121 parameters, Gradual 26122", text)

    def test_a_worker_that_dies_is_a_dash(self):
        status, text, found = self.with_peer(26122, "--rounds", "40", runs=30)
        self.assertEqual(status, 1)
        row = found["models"][0]
        self.assertEqual(row["results"].keys(), {"Gradual"})
        self.assertEqual(len(row["results"]["Gradual"]["seconds"]["rounds"]), 40)
        header, _, cells = rows(text)[:3]
        self.assertEqual(cells[header.index("libtorch")], "-")
        self.assertRegex(found["problems"][0], "mlp_small f32, 1 thread: libtorch: .* at 'run': no memory is left")

    def test_an_interrupted_call_goes_on(self):
        with tempfile.TemporaryDirectory() as folder:
            kept = os.path.join(folder, "kept.json")
            one = ("--ops", "matmul_512_f32", "--peers", "none", "--kept", kept)
            _, _, first = compare(*one)
            two = ("--ops", "matmul_512_f32,matmul_512_bf16", *one[2:], "--resume")
            status, _, second = compare(*two)
            self.assertEqual(status, 0)
            self.assertEqual([r["op"] for r in second["ops"]], ["matmul_512_f32", "matmul_512_bf16"])
            self.assertEqual(second["ops"][0], first["ops"][0])  # not measured again
            other = subprocess.run([sys.executable, os.path.join(HERE, "compare.py"), "--gradual", GRADUAL, *two,
                                    "--threads", "1", "--rounds", "4"], capture_output=True, text=True, timeout=400)
            self.assertEqual(other.returncode, 1)
            self.assertIn("--resume: settings: ", other.stderr)

    def test_bad_arguments_name_what_is_allowed(self):
        for arguments, words in ((("--models", "vgg"), "no model 'vgg'; there are mlp_small, mlp_medium"),
                                 (("--ops", "fft"), "no op 'fft'; there are matmul_1024_f32"),
                                 (("--threads", "0"), "'0' is no number of threads; allowed are 1, 2, .. and all")):
            status, text, _ = compare(*arguments)
            self.assertEqual(status, 2)
            self.assertIn(words, text)



class OurWorker(unittest.TestCase):
    """Every model and op by itself, on few data."""

    def setUp(self):
        self.worker = Worker([GRADUAL])
        self.addCleanup(self.worker.close)

    def test_models(self):
        counts = {}
        for name, spec in MODELS.items():
            for precision in PRECISIONS:
                facts = self.worker.ask("model", **{**spec, "batch": 2, "precision": precision})
                counts[name] = facts["parameters"]
                first = self.worker.ask("run", steps=1)["loss"]
                self.assertGreater(first, 0)
                steps = 12 if precision == "f16" else 1  # the first ones may be skipped: the loss scale begins high
                self.assertNotEqual(self.worker.ask("run", steps=steps)["loss"], first, name)
        self.assertEqual(counts, {"mlp_small": 26122, "mlp_medium": 669706, "mlp_large": 5824522, "cnn": 50378,
                                  "resnet_small": 272474, "gpt_small": 3323392})

    def test_ops(self):
        for name, spec in OPS.items():
            fields = {key: spec[key] for key in ("op", "dtype")}
            self.worker.ask("op", sizes=[min(n, 16) for n in spec["sizes"]], **fields)
            self.assertGreater(self.worker.ask("run", steps=3)["seconds"], 0, name)

    def test_stream(self):
        self.assertEqual(self.worker.ask("op", op="peak", of="stream")["work"], 8 * (16 << 20))
        self.assertGreater(self.worker.ask("run", steps=1)["seconds"], 0)

    def test_what_it_cannot_do_is_said(self):
        for request, words in (({"what": "op", "op": "fft", "sizes": [1], "dtype": "f32"}, "no op 'fft' here"),
                               ({"what": "op", "op": "peak", "of": "joy"}, "no way known to measure the peak of joy"),
                               ({"what": "model", "kind": "vgg", "input": [1]}, "no model of kind 'vgg'"),
                               ({"what": "run", "steps": 1}, "ask for a model or an op first"),
                               ({"what": "dance"}, "no request 'dance'")):
            with self.assertRaises(WorkerError) as caught:
                self.worker.ask(**request)
            self.assertIn(words, str(caught.exception))


if __name__ == "__main__":
    if sys.argv[1] == "--play":
        play(int(sys.argv[2]), int(sys.argv[3]))
    else:
        GRADUAL = os.path.abspath(sys.argv.pop(1))
        unittest.main()
