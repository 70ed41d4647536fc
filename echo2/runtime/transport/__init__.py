"""How the learner's host and its workers talk: HTTP messages, snapshots in chunks, shaped links."""
