"""Many cases, one answer: run two implementations on each, compare them, and say what all of it means together.

cases       which cases there are, and what they are called
templates   commands with placeholders
sides       one side of a case: a command or a function, in a process of its own
running     a case, and many of them on an executor
rows        what one case came to; `ledger` keeps the rows on disk
shares      how often, with an interval; `findings` and `summaries` what repeats over the cases
growth      how a difference develops over steps
answer      the verdict of all cases; `text` is the report
"""
