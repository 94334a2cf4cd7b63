"""The outcome of a transaction, read through a control plane."""
