"""What does not fit together in an installation, and what to do about it. Knows no torch."""

import re
from dataclasses import dataclass
from typing import Any, Dict, List, Sequence

_BUILD = "build mamba_ops from its source folder with `cmake --workflow --preset test`"
_LEVELS = ("baseline", "v3", "v4")
_V4 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


@dataclass(frozen=True)
class Device:
    """A CUDA device: its name and compute capability."""

    name: str
    major: int
    minor: int

    @property
    def capability(self) -> str:
        return f"{self.major}.{self.minor}"


def runs_on(architecture: str, device: Device) -> bool:
    """Whether code for a CMAKE_CUDA_ARCHITECTURES entry (90, 90a, 90-real, 120-virtual) runs on the device.

    Machine code runs on its own and later minor capabilities of the same major one; PTX, which an entry without a
    suffix brings along, on every later one; code for an `a` architecture on that one alone.
    """
    found = re.fullmatch(r"(\d+)(\d)([af]?)(?:-(real|virtual))?", architecture)
    if found is None:
        return False
    major, minor, feature, kind = int(found[1]), int(found[2]), found[3], found[4]
    if feature == "a":
        return (major, minor) == (device.major, device.minor)
    is_same_family = major == device.major and minor <= device.minor
    if feature == "f" or kind == "real":
        return is_same_family
    return is_same_family or (major, minor) <= (device.major, device.minor)


def advice(info: Dict[str, Any], devices: Sequence[Device], cpu_flags: Sequence[str], wanted_level: str) -> List[str]:
    """A sentence for each thing that does not fit, with the remedy; empty if all is well.

    info: what `mamba_ops.info()` returns. cpu_flags: the instruction sets of this CPU as Linux names them.
    wanted_level: the value of MAMBA_OPS_CPU, or "".
    """
    return [*_about_torch(info), *_about_cuda(info, devices), *_about_cpu(info, cpu_flags, wanted_level)]


def _about_torch(info: Dict[str, Any]) -> List[str]:
    built, running = info["torch built for"], info["torch running"].split("+")[0]
    if built.split("+")[0] == running:
        return []
    return [f"built for torch {built}, running on torch {running}: it loaded, but {_BUILD} to be sure"]


def _about_cuda(info: Dict[str, Any], devices: Sequence[Device]) -> List[str]:
    is_built, of_torch = info["CUDA"] != "not built in", info["CUDA of torch"]
    if not is_built:
        if not devices:
            return []
        return [f"no CUDA kernels inside, but there is an {devices[0].name}: install nvcc, then {_BUILD}"]
    if of_torch == "none":
        return ["CUDA kernels inside, but this torch is built for the CPU alone: install torch with CUDA to use them"]
    found = []
    if not devices:
        found.append("CUDA kernels inside, but torch sees no CUDA device: look at nvidia-smi and CUDA_VISIBLE_DEVICES")
    if info["CUDA"].split(".")[0] != of_torch.split(".")[0]:
        found.append(
            f"the kernels are built with CUDA {info['CUDA']}, torch with CUDA {of_torch}: they run if the driver is "
            "new enough for both; if not, build with torch's CUDA"
        )
    architectures = info["CUDA architectures"].split()
    for device in dict.fromkeys(devices):
        if not any(runs_on(architecture, device) for architecture in architectures):
            number = device.capability.replace(".", "")
            found.append(
                f"no kernel inside runs on the {device.name} (compute capability {device.capability}): build with "
                f"-DCMAKE_CUDA_ARCHITECTURES={number}"
            )
    return found


def _about_cpu(info: Dict[str, Any], cpu_flags: Sequence[str], wanted_level: str) -> List[str]:
    level = info["CPU level"]
    if wanted_level and wanted_level not in _LEVELS:
        return [f"MAMBA_OPS_CPU={wanted_level} is no level and is ignored: use one of {', '.join(_LEVELS)}"]
    if wanted_level and wanted_level != level:
        return [f"MAMBA_OPS_CPU={wanted_level} asks for more than this CPU has: {level} is used"]
    if wanted_level and level != "v4" and _V4.issubset(cpu_flags):
        return [f"MAMBA_OPS_CPU holds the CPU kernels at level {level}; without it they would use AVX-512"]
    if level == "baseline":
        return ["the CPU kernels run at their slowest level: this CPU (or virtual machine) shows no AVX2"]
    return []
