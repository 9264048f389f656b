"""Run a script's main() for a few iterations in this process, and look at the networks before and after."""

import copy
import signal

import pytest
import torch

from madaac_utils.run import Run


class Enough(Exception):
    """Ends a script after the wanted number of iterations."""


def run_iterations(script, args, iterations: int, monkeypatch, every_iteration=lambda run, k: None) -> Run:
    """Returns the run: `initial` are copies of its networks and optimizers at the start, `parts` the ones it trained.

    The random numbers of iteration k start with seed k. `every_iteration(run, k)` is called before each iteration.
    """
    runs = []

    class WatchedRun(Run):
        def start(self, *arguments, **parts) -> None:
            super().start(*arguments, **parts)
            runs.append(self)
            self.initial = copy.deepcopy({k: part for k, part in self.parts.items() if k not in ("buffer", "memory")})

        def steps(self, *size: int):
            for k, step in enumerate(super().steps(*size)):
                if k == iterations:
                    self.writer.close()
                    raise Enough
                every_iteration(self, k)
                torch.manual_seed(k)
                yield step

    monkeypatch.setattr(script, "Run", WatchedRun)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with pytest.raises(Enough):
            script.main(args)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return runs[0]


def seed_before(function, seed: int):
    """The same function, with random numbers that start with this seed."""

    def seeded(*arguments):
        torch.manual_seed(seed)
        return function(*arguments)

    return seeded


def record_results(function, results: list):
    """The same function, which also appends what it returns to a list."""

    def recording(*arguments):
        results.append(function(*arguments))
        return results[-1]

    return recording


def record_arguments(function, calls: list):
    """The same function, which also appends its arguments to a list."""

    def recording(*arguments):
        calls.append(arguments)
        return function(*arguments)

    return recording
