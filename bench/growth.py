"""What grows with a crowd, of all commands and events, and whether docs/costs.md says why.

The long form of tests/test_growth.py: larger crowds, and each operation beside each crowd. How it is measured
is said in tests/harness/growth.py.
"""

from __future__ import annotations

import sys

from common import Report, arguments, private_server, require
from harness.crowd import CROWDS
from harness.growth import LIBRARY, find, rows, unexplained
from harness.operations import OPERATIONS

SIZE = 2000  # of the smaller crowd, where it has no size of its own


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="+", choices=CROWDS, default=list(CROWDS), help="crowds")
    parser.add_argument("--size", type=int, default=SIZE, help="of the smaller of two crowds")
    options = parser.parse_args()

    require(LIBRARY, "cargo build --release --package slock-test-turn-meter")
    report, known = Report(options), rows()
    with private_server() as server:
        report.server(server)
    for name in options.only:
        print(f"{name}:", flush=True)
        news = 0
        for found in find(name, OPERATIONS, options.size, known):
            is_new = bool(unexplained([found], known))
            news += is_new
            print(f"  {'NOT IN THE TABLE: ' if is_new else ''}{found}", flush=True)
        report.limit("  grows, and is not in the table", news, 0)
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
