"""Relay on the pod: acquires a lease, resumes, runs the trainer, publishes, reports."""
