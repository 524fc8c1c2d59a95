"""Programs to record: networks and ways of training them, fixed before anything is measured on them."""
