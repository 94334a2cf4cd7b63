"""Threads, greenlets, forks and time limits that stay consistent when a signal handler raises."""
