"""The holder's side of a lease: asking for it, and until when it is safe (design §4)."""
