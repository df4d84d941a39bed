"""`python -m mamba_ops plot`: pictures of what bench wrote, for people and for printers without colour."""
