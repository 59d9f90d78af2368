"""A folder as one `tar.zst` and back: the same files are the same bytes on every machine, and what comes back is
believed in nothing.

- `pack.Pack` reads a folder into an archive, as a stream.
- `extract.extract` is the only way out of one, and takes only what `pack` could have written.

Stands on nothing of ours but the errors people read: commander, client and agent use it alike.
"""
