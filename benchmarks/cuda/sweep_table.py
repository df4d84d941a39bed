"""Turn the JSON rows of `scan_bench OUT.json --sweep` into a table, and name the points that fall out of line.

    python benchmarks/cuda/sweep_table.py OUT.json TABLE.md

Costs are nanoseconds per element and state (batch x dim x length x (dstate + 3): softplus and gate count as three
states). Neighbours differ in one size, by one step of the grid. A point falls out of line if it takes longer than three
times what a neighbour's cost would make it, and 20 microseconds: what launches and the first tile take, however small
the problem is.
"""

import itertools
import json
import sys

LATENCY = 0.02  # milliseconds
GATE = 3  # states
COLUMNS = [(dtype, what) for dtype in ("float32", "bfloat16") for what in ("forward", "backward")]


def read(path):
    table = {}
    with open(path, encoding="utf-8") as file:
        for row in map(json.loads, file):
            size = (row["batch"] * row["dim"], row["length"], row["dstate"])
            table.setdefault(size, {"batch": row["batch"], "dim": row["dim"]})[row["type"], row["what"]] = row["ms"]
    return table


def work(size):
    rows, length, dstate = size
    return rows * length * (dstate + GATE)


def outliers(table):
    axes = [sorted({size[axis] for size in table}) for axis in range(3)]
    for size, axis, by in itertools.product(table, range(3), (-1, 1)):
        at = axes[axis].index(size[axis]) + by
        if not 0 <= at < len(axes[axis]):
            continue
        other = size[:axis] + (axes[axis][at],) + size[axis + 1 :]
        for column in COLUMNS:
            if other not in table:
                continue
            ms, expected = table[size][column], table[other][column] * work(size) / work(other)
            if ms > 3 * expected + LATENCY:
                yield (
                    f"{column[0]} {column[1]}, {size}: {ms:.3f} ms, where the cost of {other} would make it "
                    f"{expected:.3f}"
                )


def main():
    table = read(sys.argv[1])
    lines = ["| batch, dim | length | dstate | " + " | ".join(" ".join(column) for column in COLUMNS) + " |"]
    lines.append("|---" * (3 + len(COLUMNS)) + "|")
    for size, row in table.items():
        cells = [f"{1e6 * row[column] / work(size):.3g} ({row[column]:.3f})" for column in COLUMNS]
        lines.append(f"| {row['batch']}, {row['dim']} | {size[1]} | {size[2]} | " + " | ".join(cells) + " |")
    found = list(outliers(table))
    lines += ["", "Nanoseconds per element and state, in brackets milliseconds.", ""]
    lines += (
        ["More than three times a neighbour:", ""] + [f"* {x}" for x in found]
        if found
        else ["No point costs more than three times a neighbour."]
    )
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    print("\n".join(found) or "no outliers")


if __name__ == "__main__":
    main()
