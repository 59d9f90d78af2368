"""What an agent keeps on the pod's own disk, and what the next one finds there."""
