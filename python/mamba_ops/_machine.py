"""What this machine is: the facts that a figure means nothing without."""

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any, Dict, List, Optional

import torch

from ._info import info


def cpu_field(name: str) -> str:
    """A line of /proc/cpuinfo; "" where there is none."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.split("\t")[0].strip() == name), "")


def cpu_name() -> str:
    return cpu_field("model name") or platform.processor() or platform.machine()


def cpu_flags() -> List[str]:
    return cpu_field("flags").split()


def memory_available() -> Optional[int]:
    """Bytes of main memory that can be had without swapping; None where Linux does not tell."""
    path = Path("/proc/meminfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)


def driver() -> str:
    """The version of NVIDIA's driver, or "none"."""
    if shutil.which("nvidia-smi") is None:
        return "none"
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    result = subprocess.run(query, capture_output=True, text=True)
    return result.stdout.split("\n")[0].strip() if result.returncode == 0 else "none"


def machine(device: str, threads: int) -> Dict[str, Any]:
    """The facts that stand beside every figure: device is "cpu" or "cuda"."""
    facts = dict(info(), cpu=cpu_name(), cpus=os.cpu_count(), python=platform.python_version(), threads=threads)
    facts["cpu_model"] = f"family {cpu_field('cpu family')}, model {cpu_field('model')}"
    del facts["library"]  # where it lies says nothing about the figures, but something about the user
    facts["device"] = facts["cpu"]
    if device == "cuda":
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        facts.update(
            device=properties.name,
            driver=driver(),
            multiprocessors=properties.multi_processor_count,
            clock_hz=1000 * properties.clock_rate,
        )
    return facts
