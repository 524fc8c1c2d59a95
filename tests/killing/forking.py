"""Runs writers in children that are killed: at a step of theirs, at a byte, or after some time.

One process loads everything once and forks a child for each kill, so that a thousand take a minute. It is asked by a
line of JSON {"writer", "path", "way", "at"}, and answers {"said", "died", "steps", "seconds"}: how much the child said
was written, whether it was killed, at how many steps it could have been, and how long it lived.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

STEPS = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.link", "os.symlink", "shutil.copyfile")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Killer:
    """The other end: asks the process that forks."""

    def __init__(self, module: str) -> None:
        here = Path(__file__)
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(here.parent)}
        self._server = subprocess.Popen(
            [sys.executable, here, module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def __call__(self, writer: str, path: Path, way: str, at: float) -> dict:
        """Let a writer work at a path, and kill it: at step `at`, byte `at`, or after `at` seconds."""
        print(
            json.dumps({"writer": writer, "path": str(path), "way": way, "at": at}), file=self._server.stdin, flush=True
        )
        answer = self._server.stdout.readline()
        assert answer, f"the process that forks ended while {writer} was to be killed"
        return json.loads(answer)

    def close(self) -> None:
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()


def _child(write, asked: dict, out: int) -> None:
    """The writer, with its death prepared."""
    steps = 0

    def step(event: str, arguments: tuple) -> None:
        nonlocal steps
        if event in STEPS or (event == "open" and arguments[2] & WRITING):
            steps += 1
            if asked["way"] == "step" and steps == asked["at"]:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(step)
    if asked["way"] == "byte":  # the system ends whoever writes beyond this byte of any file
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(asked["at"]), int(asked["at"])))
    write(Path(asked["path"]), lambda: os.write(out, b"."))
    os.write(out, steps.to_bytes(4, "little") + b"!")


def _fork(write, asked: dict) -> dict:
    inside, out = os.pipe()
    started = time.perf_counter()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.close(inside)
            _child(write, asked, out)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(out)
    if asked["way"] == "time":
        time.sleep(asked["at"])
        os.kill(child, signal.SIGKILL)
    with os.fdopen(inside, "rb") as said:
        heard = said.read()
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, f"{asked} failed by itself"
    ended = heard.endswith(b"!")
    steps = int.from_bytes(heard[-5:-1], "little") if ended else 0
    return {
        "said": heard[: -5 if ended else None].count(b"."), "died": os.WIFSIGNALED(status), "steps": steps,
        "seconds": time.perf_counter() - started,
    }  # fmt: skip


def _warm_up(writer) -> None:
    with tempfile.TemporaryDirectory() as place:
        writer.before(Path(place))
        writer.write(Path(place), lambda: None)


def main(module: str) -> None:
    """Fork for every line that is asked."""
    from importlib import import_module

    writers = import_module(module).WRITERS
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what writers print is no answer
    warm: set[str] = set()
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["writer"] not in warm:  # or every child would load the libraries again
            warm.add(asked["writer"])
            _warm_up(writers[asked["writer"]])
        print(json.dumps(_fork(writers[asked["writer"]].write, asked)), file=out, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
