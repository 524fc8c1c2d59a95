"""Both sides' programs, aligned: what differs between them, and which of it makes the difference."""
