"""The facts that the journals store, and their form on disk. The broker's memory is always a replay of them."""
