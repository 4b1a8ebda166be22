"""What library, plug-in and tools share: checks, environment variables, patience, facts of processes."""
