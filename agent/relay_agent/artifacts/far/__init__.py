"""What runs in the child process: the only part that packs, sends and extracts."""
