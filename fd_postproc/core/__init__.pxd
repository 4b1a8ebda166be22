# Files that ../_core.pyx includes.  This one is for the coverage plug-in of Cython: it looks for the C file
# of an included one in the folders above only as long as they are packages.
