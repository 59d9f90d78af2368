"""What a trainer's lines say: steps, totals and metrics, from recognised shapes only.

Text that merely mentions a loss (a prompt, a sample, a configuration) must not become one. `shapes` is the table of
what is recognised, each shape a small function of a line; `reader` joins what several lines say together.
"""
