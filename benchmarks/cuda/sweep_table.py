"""Turn the JSON rows of `scan_bench OUT.json --sweep` into a table, and name the points that fall out of line.

    python benchmarks/cuda/sweep_table.py OUT.json TABLE.md

Costs are nanoseconds per element (batch x dim x length x dstate). Neighbours differ in one size, by one step of the
grid. Points under 20 microseconds are those of a launch and are not held against their neighbours.
"""

import itertools
import json
import sys

LAUNCH = 0.02  # milliseconds
COLUMNS = [(dtype, what) for dtype in ("float32", "bfloat16") for what in ("forward", "backward")]


def read(path):
    table = {}
    with open(path, encoding="utf-8") as file:
        for row in map(json.loads, file):
            size = (row["batch"] * row["dim"], row["length"], row["dstate"])
            table.setdefault(size, {"batch": row["batch"], "dim": row["dim"]})[row["type"], row["what"]] = row["ms"]
    return table


def cost(size, ms):
    rows, length, dstate = size
    return 1e6 * ms / (rows * length * dstate)


def outliers(table):
    axes = [sorted({size[axis] for size in table}) for axis in range(3)]
    for size, axis in itertools.product(table, range(3)):
        after = axes[axis].index(size[axis]) + 1
        if after == len(axes[axis]):
            continue
        other = size[:axis] + (axes[axis][after],) + size[axis + 1 :]
        for column in COLUMNS:
            if other not in table or min(table[size][column], table[other][column]) < LAUNCH:
                continue
            ratio = cost(size, table[size][column]) / cost(other, table[other][column])
            if not 1 / 3 <= ratio <= 3:
                yield f"{column[0]} {column[1]}: {size} costs {ratio:.2f} times {other}"


def main():
    table = read(sys.argv[1])
    lines = ["| batch, dim | length | dstate | " + " | ".join(" ".join(column) for column in COLUMNS) + " |"]
    lines.append("|---" * (3 + len(COLUMNS)) + "|")
    for size, row in table.items():
        cells = [f"{cost(size, row[column]):.4f}" + ("*" if row[column] < LAUNCH else "") for column in COLUMNS]
        lines.append(f"| {row['batch']}, {row['dim']} | {size[1]} | {size[2]} | " + " | ".join(cells) + " |")
    found = list(outliers(table))
    lines += ["", "Nanoseconds per element. * under 20 microseconds: a launch.", ""]
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
