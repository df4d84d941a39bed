"""All CPU figures in one run: OUT.json, raw, and OUT.md, to be read.

python benchmarks/cpu/figures.py OUT [--build build/dev/benchmarks] [--commit HASH]    with mamba_ops importable

Runs operator_benchmark.py and, from the build folder, kernels_benchmark at every ISA level that this CPU has.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import torch

HERE = Path(__file__).parent
LEVELS = ("v4", "v3", "baseline")
WIDE, LONG, STEP = [1, 1536, 2048, 16], [1, 32, 8192, 16], [1, 5120, 16]

# (what, size, the slower, the faster, the least ratio wanted at each level)
GOALS = [
    ("forward: scalar C++ loop over ours", WIDE, "scalar C++ loop", "forward", {"v4": 12, "v3": 9}),
    ("bfloat16 forward: float32 over bfloat16", WIDE, "forward", "forward, bfloat16", {"v4": 1, "v3": 1}),
    ("forward: one thread over two", WIDE, "forward", "forward, 2 threads", {"v4": 1.8, "v3": 1.8}),
    ("forward: one thread over two", LONG, "forward", "forward, 2 threads", {"v4": 1.6, "v3": 1.6}),
    ("forward: Python loop over ours", [1, 256, 1024, 16], "Python loop", "forward", {"v4": 40}),
    ("forward: Python loop over ours", [1, 256, 2048, 16], "Python loop", "forward", {"v4": 40}),
    ("forward: transformers over ours", WIDE, "transformers", "forward", {}),
    ("step: scalar C++ loop over ours", STEP, "scalar C++ loop", "step", {"v4": 10}),
]
MOST = [
    ("backward over the forward before it", WIDE, "backward", "forward for training", {"v4": 2.6, "v3": 2.6}),
    ("backward over a forward without gradients", WIDE, "backward", "forward", {}),
]


def output(command, **environment):
    return subprocess.run(
        command, check=True, text=True, stdout=subprocess.PIPE, env={**os.environ, **environment}
    ).stdout


def cpu():
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    fields = dict(re.findall(r"^(model name|flags|Features)\s*: (.*)$", text, re.MULTILINE))
    return fields.get("model name", platform.processor()), set(fields.get("flags", "").split())


def levels():
    _, flags = cpu()
    needs = {"v4": {"avx512f", "avx512vl", "avx512bw", "avx512dq", "avx512cd"}, "v3": {"avx2", "fma", "bmi2"}}
    return [level for level in LEVELS if needs.get(level, set()) <= flags]


# glibc's malloc keeps what is freed. Otherwise it may give the memory of a call's results back to the kernel, and the
# next call meets thousands of page faults, or does not, by the history of the process.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**33)}


def run_level(level, arguments, with_peers):
    operators = [sys.executable, HERE / "operator_benchmark.py", arguments.build / "libscalar_loops.so"]
    operators += ["--peers"] * with_peers + ["--least", str(arguments.least)]
    results = json.loads(output(operators, MAMBA_OPS_CPU=level, **KEEP_MEMORY))
    kernels = [arguments.build / "kernels_benchmark", "--benchmark_format=json"]
    kernels += [f"--benchmark_min_time={arguments.least}s", f"--benchmark_filter={arguments.kernels}"]
    rows = json.loads(output(kernels, MAMBA_OPS_CPU=level))["benchmarks"]
    assert all(row["label"] == level for row in rows)
    unit = {"ms": 1e-3, "us": 1e-6}
    results["kernels"] = {row["name"]: row["real_time"] * unit[row["time_unit"]] for row in rows}
    return results


def seconds(results, size):
    return next(x["seconds"] for x in results["scans"] + results["steps"] if x["size"] == size)


def row(cells):
    return "| " + " | ".join(cells) + " |"


def table(head, rows):
    return "\n".join([row(head), row(["---"] * len(head)), *map(row, rows)])


def named(size):
    return ", ".join(map(str, size))


def goal_row(report, goal, is_most=False):
    what, size, slower, faster, wanted = goal
    cells = [what, named(size)]
    for level, results in report["levels"].items():
        times = seconds(results, size)
        if slower not in times or faster not in times:
            cells.append("")
            continue
        ratio = times[slower] / times[faster]
        cells.append(f"{ratio:.2f}" + (f" ({'<=' if is_most else '>='} {wanted[level]})" if level in wanted else ""))
    return cells


def milliseconds(x):
    return "" if x is None else f"{1e3 * x:.3f}"


def markdown(report, name):
    levels = list(report["levels"])
    lines = [
        f"# The CPU kernels and operators on one {report['cpu']}",
        "",
        f"Commit {report['commit']}, torch {report['torch']}, {report['cpus']} CPUs, one thread, float32 and",
        "contiguous unless said; D, z, delta_bias and softplus. The ISA levels are those of one CPU: v3 and baseline",
        f"tell what older instructions do on it, not what an older CPU does. Raw figures: [{name}.json]({name}.json).",
    ]
    if report["note"]:
        lines += ["", f"Note: {report['note']}."]
    goals = [goal_row(report, goal) for goal in GOALS] + [goal_row(report, goal, is_most=True) for goal in MOST]
    lines += ["", "## Ratios, and what they should reach", "", table(["ratio", "size", *levels], goals)]
    lines += ["", "## Operators, milliseconds (medians)", ""]
    rows = []
    for group in ("scans", "steps"):
        for first in report["levels"][levels[0]][group]:
            for what in first["seconds"]:
                times = [seconds(report["levels"][level], first["size"]).get(what) for level in levels]
                rows.append([named(first["size"]), what, *map(milliseconds, times)])
    lines += [table(["size", "what", *levels], rows), "", "## Kernels without torch, milliseconds", ""]
    kernels = [report["levels"][level]["kernels"] for level in levels]
    lines += [table(["kernel", *levels], [[x, *(milliseconds(k.get(x)) for k in kernels)] for x in kernels[0]])]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--build", type=Path, default=Path("build/dev/benchmarks"))
    parser.add_argument("--commit", help="what was built; by default the one checked out")
    parser.add_argument("--note", default="", help="what else a reader must know of the run")
    parser.add_argument("--kernels", default=".", help="regular expression: the kernels to time")
    parser.add_argument("--levels", nargs="+", default=levels())
    parser.add_argument("--least", type=float, default=0.5, help="seconds for which each thing is timed")
    arguments = parser.parse_args()
    commit = arguments.commit or output(["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"]).strip()
    report = {"cpu": cpu()[0], "cpus": len(os.sched_getaffinity(0)), "commit": commit, "torch": torch.__version__}
    report.update(note=arguments.note, levels={})
    for i, level in enumerate(arguments.levels):
        report["levels"][level] = run_level(level, arguments, with_peers=i == 0)
        arguments.out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
        arguments.out.with_suffix(".md").write_text(markdown(report, arguments.out.name))
    print(arguments.out.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
