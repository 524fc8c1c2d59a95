"""The passes of the judge, in the order in which `judging` lists them: each a function of what is known so far."""
