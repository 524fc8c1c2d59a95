"""Many cases, one answer: run two implementations on each, compare them, and say what all of it means together.

cases       which cases there are, and what they are called
templates   commands with placeholders, and processes that can be killed
case_sides  one side of a case: a command or a function, in a process of its own
case_runs   a case, and many of them on an executor; `comparing` compares two runs
case_rows   what one case came to; `ledger` keeps the rows on disk
summaries   what repeats over the cases, and how sure that is
growth      how a difference develops over steps
answer      the verdict of all cases; `sweep_text` is the report
"""
