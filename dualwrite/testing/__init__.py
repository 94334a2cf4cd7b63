"""Stand-ins for the outside world that can fail, for tests of this project and of what is built on it."""
