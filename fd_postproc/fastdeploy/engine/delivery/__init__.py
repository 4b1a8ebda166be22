"""Delivery of a step's results, up to the bytes on the API server's socket."""
