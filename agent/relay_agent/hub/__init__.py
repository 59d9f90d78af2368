"""The Hugging Face Hub: what lies there, and how it gets there and back.

`layout` says what a repository holds; `protocol` and `calls` are the agent's side of a child process, `child` its own;
`far` is what runs in there: nothing else imports huggingface_hub, which is more than an agent may weigh.
"""
