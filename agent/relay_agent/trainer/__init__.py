"""The trainer's command, and the agent's end of the guardian that runs it."""
