"""Changes of the reference's program, searched: what is tried around a call, fitted, narrowed and held to the rest."""
