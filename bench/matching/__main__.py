"""`python -m bench.matching [GLOB]`: the score of every pair, and of all."""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from fnmatch import fnmatchcase
from pathlib import Path

from .making import questions
from .scoring import Score, score


def main(pattern: str = "*") -> None:
    """Ask all questions whose name fits."""
    whole, count = Score(), 0
    for question in questions():
        if not fnmatchcase(question.name, pattern):
            continue
        with tempfile.TemporaryDirectory(prefix="matching-") as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = question.make(Path(folder))
            start = time.process_time()
            found = score(made)
            spent = time.process_time() - start
        whole.add(found)
        count += 1
        print(f"{question.name:44} {found}  {spent:5.2f} s", flush=True)
        for line in [*found.mistakes[:8], *[f"unsaid: {one}" for one in found.unsaid[:4]]]:
            print("    ", line)
    share = 100 / max(whole.total, 1)
    print(f"{count} pairs: {whole.right * share:.2f} % right, {whole.wrong * share:.2f} % wrong, of {whole.total}")


if __name__ == "__main__":
    main(*sys.argv[1:])
