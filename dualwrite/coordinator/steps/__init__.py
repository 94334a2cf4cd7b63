"""The steps of a unit of work: performed, observed, repeated; and the exception that its caller gets."""
