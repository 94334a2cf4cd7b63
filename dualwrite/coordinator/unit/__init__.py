"""One unit of work: the driver of the machine, what user code holds, and how a unit ends."""
