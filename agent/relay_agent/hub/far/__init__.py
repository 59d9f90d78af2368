"""What the child process does at the Hub. Only here is huggingface_hub imported; nothing of the agent imports this."""
