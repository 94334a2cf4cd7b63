"""Threads, greenlets, forks and limits in time, as far as a signal handler's exception cannot tear them."""
