"""The trial of the plug-in: both token processors process the same canned steps, and must agree."""
