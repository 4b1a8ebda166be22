"""What goes wrong, said once: guards, counters, gauges, and the log."""
