"""The token processor's class, split into mix-ins by task."""
