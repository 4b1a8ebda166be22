"""The API server's side: fast paths from a result to the bytes of an answer."""
