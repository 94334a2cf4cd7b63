"""What became of a transaction: asked of the control plane that it is given."""
