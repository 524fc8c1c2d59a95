"""The cause of a drift: the smallest change of the reference's program that gives the candidate's tensor."""
