"""`python -m driftbench`, from the directory above."""

from driftbench.run import main

main()
