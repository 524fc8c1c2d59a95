"""Tables of changes: what a call may be instead, by its operation; each says what it would be called."""
