"""The FastDeploy plug-in: the only package that knows FastDeploy's classes.

`engine` runs in the process that receives, `worker` in those that save, `api` in those that answer; `gate`
decides what of each is used.
"""
