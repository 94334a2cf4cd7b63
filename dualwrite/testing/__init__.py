"""Test doubles that can fail, for the tests of this project and of programs built on it."""
