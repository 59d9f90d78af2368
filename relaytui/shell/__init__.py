"""What both programs share of being run from a shell: how they begin and end, and arguments that are none."""
