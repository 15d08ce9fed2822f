"""Runs the driver on tiny rounds: python3 compare_test.py PATH/gradual-compare. Needs no torch; peers are played by this
very file (--play), which answers as a worker would, with times that are known."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
GRADUAL = None


def play(parameters):
    """A peer whose every step takes 1 ms by its own account."""
    for line in sys.stdin:
        request = json.loads(line)
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
            capture_output=True, text=True, timeout=120)
        if run.returncode == 2:
            return 2, run.stderr, None
        with open(paths[0]) as text, open(paths[1]) as numbers:
            markdown, found = text.read(), json.load(numbers)
    assert run.stdout == markdown, run.stdout
    return run.returncode, markdown, found


def rows(markdown):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in markdown.splitlines()
            if line.startswith("|")]


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

    def test_every_model_and_op_runs(self):
        from workloads import OPS
        status, text, found = compare("--models", "cnn,resnet_small,gpt_small", "--precisions", "f32", "--ops", "all",
                                      "--rounds", "1", "--round-seconds", "0.001", "--peers", "none")
        self.assertEqual(status, 0, text)
        self.assertEqual(len(found["models"]), 3)
        self.assertEqual([r["op"] for r in found["ops"]], list(OPS))
        counts = {r["model"]: r["results"]["Gradual"]["parameters"] for r in found["models"]}
        self.assertEqual(counts, {"cnn": 50378, "resnet_small": 272474, "gpt_small": 3323392})
        for row in found["ops"]:
            rate = row["results"]["Gradual"]["rate"]["median"]
            if row["peak"] == "stream":
                self.assertIn("peak_rate", row)
            if "peak_rate" in row:
                self.assertAlmostEqual(row["results"]["Gradual"]["share"]["median"], rate / row["peak_rate"]["median"])

    def test_a_peer_that_is_not_there_is_named(self):
        status, text, found = compare("--models", "mlp_small", "--precisions", "f32", "--libtorch", "/no/such/worker",
                                      "--absent", "pytorch=the moon is full")
        self.assertEqual(status, 0, text)
        self.assertIn("- PyTorch: not compared, the moon is full", text)
        self.assertIn("- libtorch: not compared, /no/such/worker does not start", text)
        self.assertEqual(found["models"][0]["results"].keys(), {"Gradual"})

    def with_peer(self, parameters, *arguments):
        with tempfile.NamedTemporaryFile("w", suffix=".sh", delete=False) as script:
            script.write(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" --play {parameters}\n')
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

    def test_bad_arguments_name_what_is_allowed(self):
        for arguments, words in ((("--models", "vgg"), "no model 'vgg'; there are mlp_small, mlp_medium"),
                                 (("--ops", "fft"), "no op 'fft'; there are matmul_1024_f32"),
                                 (("--threads", "0"), "'0' is no number of threads; allowed are 1, 2, .. and all")):
            status, text, _ = compare(*arguments)
            self.assertEqual(status, 2)
            self.assertIn(words, text)


if __name__ == "__main__":
    if sys.argv[1] == "--play":
        play(int(sys.argv[2]))
    else:
        GRADUAL = os.path.abspath(sys.argv.pop(1))
        sys.path.insert(0, HERE)
        unittest.main()
