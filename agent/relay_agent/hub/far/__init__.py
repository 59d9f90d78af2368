"""What the child process does at the Hub. Only here is huggingface_hub imported; nothing of the agent imports this."""

from relay_agent.hub.protocol import Check, ListSteps, Pull, Send, Trim

JOBS = Check | Send | Trim | ListSteps | Pull
WORK = {Check: "check.work", Send: "send.work", Trim: "trim.work", ListSteps: "list_steps.work", Pull: "pull.work"}
