"""The rules of a dual write, without I/O: the machine, what recovery decides, who may take which slot, identities."""
