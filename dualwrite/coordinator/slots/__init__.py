"""The slots of a process: leased, kept warm, renewed, swept, and given back."""
