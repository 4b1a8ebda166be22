"""FastDeploy's own server without a GPU: run, asked by a client, measured; plug-in off and on.

A FastDeploy source tree is given; nothing of it is here.  `shim` is loaded beside it and stands in for what a
GPU machine would give.
"""
