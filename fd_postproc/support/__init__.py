"""Shared by library, plug-in and tools: checks, environment variables, waits, facts of processes."""
