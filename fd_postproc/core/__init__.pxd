# Files that ../_core.pyx includes.  This one is here for Cython's coverage plug-in, which looks for the C file
# of an included one in the folders above only as long as they are packages.
