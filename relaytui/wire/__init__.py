"""What both programs say to each other: typed messages, statuses, ids. No I/O but the clock's reading."""
