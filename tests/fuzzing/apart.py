"""Feed in a process of its own: a reader that ends its process, or takes all memory there is, ends nobody else's."""

import json
import os
import resource
import sys
import tempfile
import traceback
import warnings
from dataclasses import asdict
from pathlib import Path

from tests.fuzzing.feeding import Fed, Subject, feed

ROOM = 8 << 30  # bytes of addresses that a child may ask for beyond those it has


def feed_apart(subject: Subject, directory: Path, seeds: range) -> Fed:
    """As `feed`; where the system has no fork, here."""
    if not hasattr(os, "fork"):
        return feed(subject, directory, seeds)
    with tempfile.TemporaryFile() as answer:
        status = os.waitstatus_to_exitcode(os.waitpid(_fork(subject, directory, seeds, answer.fileno()), 0)[1])
        answer.seek(0)
        lines = answer.read().decode().splitlines()
    if status == 0:
        return Fed(**json.loads(lines[-1]))
    last = lines[-1] if lines else "none"
    ended = f"ended by signal {-status}" if status < 0 else f"ended with exit code {status}"
    return Fed(foreign={"the process": f"input {last}: the process {ended}"})


def _fork(subject: Subject, directory: Path, seeds: range, answer: int) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of libraries, idle now
        child = os.fork()
    if child:
        return child
    code = 1
    try:
        _limit()
        fed = feed(subject, directory, seeds, lambda seed: os.pwrite(answer, f"{seed:>20}\n".encode(), 0))
        os.pwrite(answer, f"{json.dumps(asdict(fed))}\n".encode(), 21)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _limit() -> None:
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)  # the threads of a forked process are gone, and OpenMP would wait for them
    if sys.platform == "linux":
        with open("/proc/self/statm") as said:
            has = int(said.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (has + ROOM, resource.getrlimit(resource.RLIMIT_AS)[1]))
