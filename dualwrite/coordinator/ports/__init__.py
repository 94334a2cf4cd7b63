"""What the recipe asks of the world: Protocols, so that a simulation can stand in for it and fail on purpose."""
