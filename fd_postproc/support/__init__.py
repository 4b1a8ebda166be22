"""What library, plug-in and tools share: checks, environment variables, limits, processes, logs."""
