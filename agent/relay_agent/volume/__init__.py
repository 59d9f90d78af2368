"""The run's folder on the volume: its layout, who claims it, and what is written there for people."""
