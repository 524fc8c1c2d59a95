"""One module a command: it parses, calls the library, prints and exits."""
