"""Why two tensors differ: hypotheses, each tested by predicting the candidate's numbers."""
