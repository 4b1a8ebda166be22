"""Parts of `fd_postproc._core`: the ``.pxi`` files that it includes, and the Python that it calls."""
