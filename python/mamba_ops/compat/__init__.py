"""Drop-in functions with the signatures of other packages, over the operators of this one."""

from . import mamba_ssm

__all__ = ["mamba_ssm"]
