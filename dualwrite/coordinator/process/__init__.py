"""This process: its threads, its clock and its identity; limits in time, forks, event loops, signal handlers."""
