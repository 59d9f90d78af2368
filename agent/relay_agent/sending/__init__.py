"""What goes off the pod and comes back, wherever that is: `hub` and `artifacts` stand on it, and never on each other.

A child process does the work (`child` is its side, `calls` the agent's, `protocol` what they say); `sender` decides
when something is sent, `way` how long the end of an attempt waits for it, `shown` what is told of it; `source`
brings back.
"""
