"""The rollout worker: one process that dials out, generates with its engine and sends rollouts home."""
