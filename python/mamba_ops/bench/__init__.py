"""`python -m mamba_ops bench`: the operators beside other implementations of the same scan, timed on this machine."""
