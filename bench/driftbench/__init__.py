"""Real bugs planted in small networks, and legal rewrites of them: how well is the first drift found and explained?

`case` says what a case is, `networks` hold the two implementations of each function, `faults` what can be wrong beside
them, `cases` the list, `sides` makes the two models of a case, `asking` puts them to firstdrift, `baselines` to the
rules that others use, `scoring` compares what was said with the truth.
"""
