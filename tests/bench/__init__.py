"""Speed and size beside yardsticks: `python -m tests.bench --help`."""
