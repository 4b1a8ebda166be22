"""The engine's health for an operator: counters, gauges, log lines, the watchdog."""
