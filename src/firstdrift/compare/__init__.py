"""Two traces brought together: paired, reconciled, measured. Nothing here judges."""
