"""How the reasons of verdicts begin, or what they hold, where others look for them."""

LAYOUT = "stored or computed in another layout"
CALIBRATED = "as calibrated"
AMPLIFIED = "amplified noise"
REFERENCE_OFF = "it is the reference that is off"
