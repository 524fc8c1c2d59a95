"""`python -m realbugs`, from the directory above."""

from realbugs.running import main

main()
