"""The driver's end of a worker: a process that answers JSON lines (worker.h)."""

import json
import os
import subprocess
import threading


class WorkerError(Exception):
    pass


class Worker:
    """A running worker. `environment` replaces variables; None removes one."""

    def __init__(self, command, environment=None, seconds=300):
        self.command, self.seconds = command, seconds
        env = dict(os.environ)
        for name, value in (environment or {}).items():
            env.pop(name, None)
            if value is not None:
                env[name] = value
        self.noise = []
        try:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=subprocess.PIPE, text=True, env=env)
        except OSError as problem:
            raise WorkerError(f"{command[0]} does not start: {problem}") from None
        self.reader = threading.Thread(target=self._read_noise, daemon=True)
        self.reader.start()

    def _read_noise(self):  # so that a chatty worker is never blocked, and its last words are known
        for line in self.process.stderr:
            self.noise = (self.noise + [line.rstrip()])[-5:]

    def ask(self, what, **fields):
        timer = threading.Timer(self.seconds, self.process.kill)
        timer.start()
        try:
            self.process.stdin.write(json.dumps({"do": what, **fields}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            self.process.wait()
            self.reader.join(timeout=2)
            words = " ".join(self.noise)[-300:] or "no message"
            raise WorkerError(f"{os.path.basename(self.command[-1])} ended with status {self.process.returncode} "
                              f"at '{what}': {words}")
        reply = json.loads(line)
        if "error" in reply:
            raise WorkerError(reply["error"].splitlines()[0])
        return reply

    def close(self):
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.reader.join(timeout=2)
        self.process.stderr.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
