"""The live world's driver: happenings become facts, the scheduler's decisions become happenings."""
