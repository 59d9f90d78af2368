"""Who makes the load: clients in processes of their own, the same for the yardstick and for Relay."""
