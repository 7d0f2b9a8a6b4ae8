"""gpupool-server: admits clients to one host's GPUs and keeps a worker for each.

No forwarded call passes through here: a client asks once at the front end and
then talks to its worker alone, whether this process lives or not.
"""
