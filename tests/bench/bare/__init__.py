"""Yardsticks: the least that could do the same job, with nothing of Relay in it. Measured in the same round."""
