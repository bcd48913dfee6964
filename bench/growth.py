"""What grows with a crowd, of all commands and events, and whether docs/costs.md says why.

How it is measured is said in growth_measured.py; tests/test_growth.py shows that no command is left out.
"""

from __future__ import annotations

import sys

from common import Report, arguments, private_server, require
from growth_crowds import CROWDS
from growth_measured import LIBRARY, find, rows, unexplained
from growth_operations import OPERATIONS

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
