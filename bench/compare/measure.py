"""Contestants take turns: each round times every one of them for a short while, so that what slows the machine down for
seconds slows all alike, and ratios are taken within a round."""

import statistics
import time
from dataclasses import dataclass, field

from workers import Worker, WorkerError
from workloads import WARM_UP


LEARNING_STEPS = 20  # after which a model's loss must have fallen


@dataclass
class Framework:
    name: str
    command: list
    environment: dict = field(default_factory=dict)
    device: str = "cpu"

    def start(self, threads):
        worker = Worker(self.command, self.environment)
        try:
            worker.hello = worker.ask("hello")
            worker.ask("threads", count=threads)
            if self.device != "cpu":
                worker.ask("device", name=self.device)
        except WorkerError:
            worker.close()
            raise
        return worker


def summary(values):
    """Median and quartiles."""
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return {"median": median, "q1": q1, "q3": q3}


def ratios(others, ours):
    """How many times faster ours is, round by round."""
    return summary([b / a for a, b in zip(ours, others)])


def warm(worker, seconds):
    """Runs for about `seconds` and returns the time of a step."""
    steps, spent, step = 1, 0.0, None
    while spent < seconds:
        took = worker.ask("run", steps=steps)["seconds"]
        spent += took
        step = took / steps
        steps = max(1, min(4 * steps, int(seconds / max(step, 1e-9))))
    return step


class Contestant:
    """A worker with its job, and the times of a step that were measured."""

    def __init__(self, name, worker, request, round_seconds, clock="seconds"):
        self.name, self.worker, self.clock, self.times = name, worker, clock, []
        self.died = None  # why its worker ended, or answered with an error, after the start
        if request["do"] == "model":
            worker.ask("model", **WARM_UP)
            worker.ask("run", steps=2)
        self.facts = worker.ask(request["do"], **{k: v for k, v in request.items() if k != "do"})
        self.first_loss = worker.ask("run", steps=1)["loss"]
        self.last_loss = self.first_loss
        step = warm(worker, round_seconds)
        self.steps = max(1, round(round_seconds / step))
        self.left_to_learn = LEARNING_STEPS if request["do"] == "model" else 0

    def turn(self):
        if self.died:
            return
        try:
            reply = self.worker.ask("run", steps=self.steps)
        except WorkerError as problem:
            self.died = str(problem)
            return
        self.times.append(reply[self.clock] / self.steps)
        self.last_loss = reply["loss"]
        self.left_to_learn -= self.steps

    def result(self):
        """None if the worker died."""
        if self.died:
            return None
        try:
            return self._result()
        except WorkerError as problem:
            self.died = str(problem)
            return None

    def _result(self):
        if self.left_to_learn > 0:
            self.last_loss = self.worker.ask("run", steps=self.left_to_learn)["loss"]
        return {"seconds": {**summary(self.times), "rounds": self.times}, "steps_a_round": self.steps,
                "loss": [self.first_loss, self.last_loss], "memory": self.worker.ask("memory"), **self.facts}


def take_turns(contestants, rounds):
    for r in range(rounds):
        shift = r % len(contestants)  # nobody always runs after the same one
        for contestant in contestants[shift:] + contestants[:shift]:
            time.sleep(0.005)  # the threads of the one before go to sleep
            contestant.turn()


def fastest_variant(framework, spec, threads, seconds):
    """Which of a framework's own settings suits a model best, tried one by one in a process of its own."""
    with framework.start(threads) as worker:
        known = worker.hello["variants"]
        options = [[]]
        if "fused" in known:
            options += [["fused"]]
        if "channels_last" in known and len(spec["input"]) == 3:
            options += [o + ["channels_last"] for o in options]
        if len(options) == 1:
            return []
        times = []
        for variant in options:
            worker.ask("model", **{**spec, "variant": variant})
            warm(worker, seconds)
            times.append(min(warm(worker, seconds / 2) for _ in range(3)))
        return options[times.index(min(times))]
