"""The rollout plane: inference engines behind one small protocol. Importing it loads no heavy library."""
