"""The rules of a dual write, without I/O: the machine, recovery's decision, which slots may be taken, identities."""
