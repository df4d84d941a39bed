"""`python -m mamba_ops info` prints what is installed."""

import argparse

from . import info


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m mamba_ops", description=__doc__)
    parser.add_argument("command", choices=["info"], help="info: versions and build options")
    parser.parse_args()
    rows = info()
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"{name:<{width}}  {value}")


if __name__ == "__main__":
    main()
