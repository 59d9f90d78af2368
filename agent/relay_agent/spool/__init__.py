"""Reports on the pod's own disk until the commander has them (design §6)."""
