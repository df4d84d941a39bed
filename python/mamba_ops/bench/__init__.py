"""`python -m mamba_ops bench`: the operators beside other implementations of the same scan, timed on this machine."""

import logging

# torch's builder of extensions, which comes with other modules, warns where nvcc is there but no GPU: not of use here.
logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
