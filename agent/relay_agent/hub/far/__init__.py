"""What the child process does at the Hub. Only here is huggingface_hub imported; nothing of the agent imports this."""

from relay_agent.hub.protocol import Check, Highest, ListSteps, Pull, Send, Trim

JOBS = Check | Send | Trim | Highest | ListSteps | Pull
WORK = {
    Check: "check.work",
    Send: "send.work",
    Trim: "trim.work",
    Highest: "highest.work",
    ListSteps: "list_steps.work",
    Pull: "pull.work",
}
