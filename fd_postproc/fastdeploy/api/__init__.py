"""The API server's process: from a result to the bytes of an answer."""
