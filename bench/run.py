"""`make bench`: every bar of the project, as ratios within one run. Exits with 1 when one is missed."""

import importlib
import sys

BENCHES = (
    "store",
    "c_header",
    "kernels",
    "diff",
    "pairing",
    "commands",
    "capture",
    "program",
    "demo",
    "explain",
    "pretrain",
    "sweep",
    "weights",
    "weights_loading",
    "decoder",
)


def main() -> int:
    missed = []
    for name in BENCHES:
        print(f"\n{name}", flush=True)
        for row in importlib.import_module(name).rows():
            print(f"  {row}", flush=True)
            if not row.reached:
                missed.append(row.name)
    print(f"\n{len(missed)} bars missed" + "".join(f"\n  {name}" for name in missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
