"""What `fd_postproc._core` is made of: the ``.pxi`` files that it includes, and the Python that it calls."""
