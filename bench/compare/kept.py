"""What a comparison has measured so far, in a file, so that a later call can go on."""

import json
import os
import sys


class Kept:
    """Measurements by name. `about` (commit, machine, settings ..) must be the same when a call goes on."""

    def __init__(self, path, about, resume):
        self.path, self.about, self.units = path, json.loads(json.dumps(about)), {}
        if resume:
            self._load()
        elif path and os.path.exists(path):
            os.remove(path)

    def _load(self):
        try:
            with open(self.path) as file:
                kept = json.load(file)
        except (OSError, TypeError, ValueError) as problem:
            sys.exit(f"compare: --resume: nothing is kept: {problem}")
        for name, value in self.about.items():
            if kept["about"].get(name) != value:
                sys.exit(f"compare: --resume: {name}: {kept['about'].get(name)} before, now {value}; "
                         "measurements of both do not mix")
        self.units = kept["units"]

    def get(self, name):
        return self.units.get(name)

    def put(self, name, value):
        self.units[name] = value
        if not self.path:
            return
        os.makedirs(os.path.dirname(os.path.abspath(self.path)), exist_ok=True)
        with open(self.path + ".new", "w") as file:
            json.dump({"about": self.about, "units": self.units}, file)
        os.replace(self.path + ".new", self.path)
