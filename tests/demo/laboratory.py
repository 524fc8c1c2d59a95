"""Runs both sides, and keeps what several tests ask for."""

import subprocess

import torch

from firstdrift.demo.spotter_files import PROBES
from firstdrift.demo.twin import Run, export

SANITIZED = (
    "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-g", "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
)  # fmt: skip


class Laboratory:
    """Traces by what they are of, each recorded when it is first asked for."""

    def __init__(self, port, directory):
        self.port = port
        self.directory = directory
        self._made = {}

    def weights(self, seed):
        path = self.directory / f"weights-{seed}.bin"
        if not path.exists():
            export(path, seed=seed)
        return path

    def reference(self, *, seed=0, dtype=torch.float32, **options):
        return self._once("reference", options | {"seed": seed, "dtype": dtype}, self._reference)

    def candidate(self, *, seed=0, bug="none", start=0, batch=32, samples=4, steps=1):
        options = {"seed": seed, "bug": bug, "start": start, "batch": batch, "samples": samples, "steps": steps}
        return self._once("candidate", options, self._candidate)

    def _once(self, side, options, make):
        key = (side, *sorted(options.items(), key=lambda item: item[0]))
        if key not in self._made:
            self._made[key] = self.directory / f"{side}-{len(self._made)}"
            make(self._made[key], **options)
        return self._made[key]

    def _reference(self, path, *, seed, **options):
        Run(self.weights(seed), seed=seed, **options).record(path)

    def _candidate(self, path, *, seed, **options):
        self.port.record(self.weights(seed), path, seed=seed, **options)


def run(port, *arguments):
    """The finished process, whatever it says."""
    return subprocess.run([port.program, *map(str, arguments)], capture_output=True, text=True)


def refusal(port, *arguments, code=2):
    """The one sentence with which the port refuses, or with 1 says what it could not write."""
    done = run(port, *arguments)
    assert done.returncode == code, done
    assert done.stderr.startswith("kws: ")
    assert done.stderr.endswith("\n")
    assert done.stderr.count("\n") == 1
    return done.stderr.removeprefix("kws: ").rstrip("\n")


def basics(weights, probes=PROBES):
    return "--weights", weights, "--probes", probes
