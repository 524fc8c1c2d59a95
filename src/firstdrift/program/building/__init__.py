"""How a step of calls is made from what a trace says of its operations, and whether it is true."""
