"""Two traces into pairs: by map, by name, by what was computed; and every leftover with its reason."""
