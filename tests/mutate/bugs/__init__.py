"""The listed bugs, a module for each room."""
