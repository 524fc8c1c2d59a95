"""`python -m adversary --cases 1000 --seed 1`, with src and bench on the path."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path

import torch

from .cases import Outcome, open_batch, run_case
from .crowd import outcomes
from .tally import summary


def repeated(case: str, scratch: Path, only: str | None = None) -> Outcome | None:
    """One case again, by its id."""
    seed, number, index = map(int, case.split("."))
    return run_case(open_batch(seed, number, scratch, only), index)


def main() -> None:
    parser = argparse.ArgumentParser(prog="adversary", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes; the cases are the same however many")
    parser.add_argument("--json", type=Path, help="write every case to this file, one a line")
    parser.add_argument("--only", help="one kind of network, or one kind of change")
    parser.add_argument("--case", help="repeat one case by its id")
    options = parser.parse_args()
    torch.set_num_threads(1)
    scratch = Path(tempfile.mkdtemp(prefix="adversary-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        if options.case:
            outcome = repeated(options.case, scratch, options.only)
            print(json.dumps(outcome and outcome.to_dict(), indent=1))
            return
        start, done = time.monotonic(), []
        sink = options.json.open("w") if options.json else None
        for outcome in outcomes(options.seed, options.cases, scratch, options.only, options.workers):
            done.append(outcome)
            if sink:
                sink.write(json.dumps(outcome.to_dict()) + "\n")
                sink.flush()
        print(summary(done, (time.monotonic() - start) * options.workers))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
